//! Owns the definitions of the policy.linkerd.io kinds but HTTPRoute (contract 9.6, 10); what needs more than one object
//! or a parser to judge is left to the webhook.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    Version, age, column, definition,
    schema::{
        Field, Schema, at_most, boolean, bounded, choice, int_or_string, integer, label, list,
        local_ref, namespaced_ref, networks, not_empty, object, opt, pattern, req, rule, selector,
        string, with_default,
    },
    status,
};
use crate::objects::Kind;

/// DNS name, with `*` for its first labels, or SPIFFE ID.
const IDENTITY: &str = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$|^spiffe://[a-z0-9._-]+(/[A-Za-z0-9._-]+)*$";
/// Largest number of overrides of a rate limit; rules about a list need a limit.
const MAX_OVERRIDES: i64 = 1_000;

pub(super) fn server() -> CustomResourceDefinition {
    const DESCRIPTION: &str = "A port of some workloads, what is spoken there, and who may connect unless a policy says so.";
    let pods = || selector("Pods of this namespace; an empty selector takes all of them.");
    let old = || {
        [
            req("podSelector", pods()),
            req("port", server_port()),
            opt("proxyProtocol", protocol()),
        ]
    };
    let either = || {
        [
            opt("podSelector", pods()),
            opt(
                "externalWorkloadSelector",
                selector(
                    "External workloads of this namespace; an empty selector takes all of them.",
                ),
            ),
            req("port", server_port()),
            opt("proxyProtocol", protocol()),
        ]
    };
    let access = with_default(
        choice(
            "Who may connect where no policy authorizes the client.",
            &[
                "all-unauthenticated",
                "all-authenticated",
                "cluster-unauthenticated",
                "cluster-authenticated",
                "deny",
                "audit",
            ],
        ),
        "deny",
    );
    let columns = || {
        vec![
            column("Port", "string", ".spec.port", "The port."),
            column(
                "Protocol",
                "string",
                ".spec.proxyProtocol",
                "What is spoken there.",
            ),
        ]
    };
    let mut with_access = columns();
    with_access.push(column(
        "Access Policy",
        "string",
        ".spec.accessPolicy",
        "Who may connect where no policy authorizes the client.",
    ));
    let version = |name, spec| Version {
        status: Some(status::of_conditions()),
        ..Version::new(name, DESCRIPTION, spec)
    };
    let versions = vec![
        Version {
            deprecated: Some("policy.linkerd.io/v1alpha1 Server is deprecated: use v1beta3"),
            ..version("v1alpha1", server_spec(old()))
        },
        Version {
            columns: columns(),
            deprecated: Some("policy.linkerd.io/v1beta1 Server is deprecated: use v1beta3"),
            ..version("v1beta1", server_spec(old()))
        },
        Version {
            columns: columns(),
            ..version("v1beta2", one_selector(server_spec(either())))
        },
        Version {
            columns: with_access,
            ..version(
                "v1beta3",
                one_selector(server_spec(
                    either().into_iter().chain([opt("accessPolicy", access)]),
                )),
            )
        },
    ];
    definition(Kind::Server, &["srv"], versions)
}

fn server_spec(fields: impl IntoIterator<Item = Field>) -> Schema {
    object("The definition.", fields)
}

fn one_selector(spec: Schema) -> Schema {
    rule(
        spec,
        "has(self.podSelector) != has(self.externalWorkloadSelector)",
        "give either podSelector or externalWorkloadSelector",
    )
}

fn server_port() -> Schema {
    rule(
        int_or_string("Number or name of the container port."),
        "type(self) == int ? self >= 1 && self <= 65535 : size(self) >= 1 && size(self) <= 63",
        "give a port from 1 to 65535 or the name of a container port",
    )
}

fn protocol() -> Schema {
    with_default(
        choice(
            "What is spoken there; unknown is detected for each connection.",
            &["unknown", "HTTP/1", "HTTP/2", "gRPC", "opaque", "TLS"],
        ),
        "unknown",
    )
}

pub(super) fn server_authorization() -> CustomResourceDefinition {
    const DESCRIPTION: &str = "Authorizes clients of Servers; an AuthorizationPolicy can say more.";
    let column = column(
        "Server",
        "string",
        ".spec.server.name",
        "The Server that clients may reach.",
    );
    let versions = vec![
        Version {
            deprecated: Some(
                "policy.linkerd.io/v1alpha1 ServerAuthorization is deprecated: use v1beta1",
            ),
            ..Version::new("v1alpha1", DESCRIPTION, server_authorization_spec())
        },
        Version {
            columns: vec![column],
            ..Version::new("v1beta1", DESCRIPTION, server_authorization_spec())
        },
    ];
    definition(
        Kind::ServerAuthorization,
        &["saz", "serverauthz", "srvauthz"],
        versions,
    )
}

fn server_authorization_spec() -> Schema {
    let server = object(
        "Which Servers of this namespace.",
        [
            opt("name", label("One Server.")),
            opt("selector", selector("Servers with these labels.")),
        ],
    );
    let server = rule(
        server,
        "has(self.name) != has(self.selector)",
        "give either name or selector",
    );
    object(
        "The definition.",
        [req("server", server), req("client", server_client())],
    )
}

fn server_client() -> Schema {
    let account = object(
        "A service account.",
        [
            req("name", label("Its name.")),
            opt(
                "namespace",
                label("Its namespace; that of this object if it is absent."),
            ),
        ],
    );
    let mesh_tls = object(
        "Who clients must be.",
        [
            opt(
                "unauthenticatedTLS",
                boolean("Clients over mesh TLS need no certificate of their own."),
            ),
            opt(
                "identities",
                list(
                    "Identities; *.suffix takes all below a name, * takes all.",
                    identity(),
                ),
            ),
            opt(
                "serviceAccounts",
                list("Service accounts of this cluster.", account),
            ),
        ],
    );
    let mesh_tls = rule(
        mesh_tls,
        "!(has(self.unauthenticatedTLS) && self.unauthenticatedTLS) || (!has(self.identities) && !has(self.serviceAccounts))",
        "unauthenticatedTLS takes any client: leave identities and serviceAccounts out",
    );
    let client = object(
        "Which clients.",
        [
            opt(
                "networks",
                networks("Where clients may be; the networks of the cluster if it is absent."),
            ),
            opt(
                "unauthenticated",
                boolean("Clients need neither mesh TLS nor a certificate."),
            ),
            opt("meshTLS", mesh_tls),
        ],
    );
    rule(
        client,
        "!(has(self.unauthenticated) && self.unauthenticated && has(self.meshTLS))",
        "unauthenticated takes any client: leave meshTLS out",
    )
}

fn identity() -> Schema {
    pattern(bounded(string("An identity."), 1, 2_048), IDENTITY)
}

pub(super) fn authorization_policy() -> CustomResourceDefinition {
    let target = local_ref("A Server, an HTTPRoute, a GRPCRoute, or the Namespace of this policy.");
    // Two references are enough: one for who clients are, one for where they are.
    let required = at_most(
        2,
        list(
            "Everything that clients must satisfy; an empty list lets everybody in.",
            namespaced_ref("A MeshTLSAuthentication, a NetworkAuthentication or a ServiceAccount."),
        ),
    );
    let required = rule(
        required,
        "self.filter(r, r.kind.lowerAscii() == 'networkauthentication').size() <= 1 && self.filter(r, r.kind.lowerAscii() != 'networkauthentication').size() <= 1",
        "give at most one NetworkAuthentication, and at most one MeshTLSAuthentication or ServiceAccount",
    );
    let required = rule(
        required,
        "self.all(r, r.kind.lowerAscii() in ['meshtlsauthentication', 'networkauthentication', 'serviceaccount'])",
        "an authentication is a MeshTLSAuthentication, a NetworkAuthentication or a ServiceAccount",
    );
    let spec = object(
        "The definition.",
        [
            req("targetRef", target),
            req("requiredAuthenticationRefs", required),
        ],
    );
    let spec = rule(
        spec,
        "self.targetRef.kind.lowerAscii() in ['server', 'httproute', 'grpcroute', 'namespace']",
        "the target is a Server, an HTTPRoute, a GRPCRoute or a Namespace",
    );
    let version = Version {
        status: Some(status::of_conditions()),
        ..Version::new(
            "v1alpha1",
            "Authorizes clients of a target that satisfy all of some authentications.",
            spec,
        )
    };
    definition(Kind::AuthorizationPolicy, &["authzpolicy"], vec![version])
}

pub(super) fn mesh_tls_authentication() -> CustomResourceDefinition {
    let spec = object(
        "The definition.",
        [
            opt(
                "identities",
                list(
                    "Identities; *.suffix takes all below a name, * takes all.",
                    identity(),
                ),
            ),
            opt(
                "identityRefs",
                list(
                    "Service accounts, or namespaces for all of theirs.",
                    namespaced_ref("A ServiceAccount or a Namespace."),
                ),
            ),
        ],
    );
    let spec = rule(
        spec,
        "has(self.identities) != has(self.identityRefs)",
        "give either identities or identityRefs",
    );
    let version = Version::new("v1alpha1", "Clients by who they are.", spec);
    definition(
        Kind::MeshTlsAuthentication,
        &["meshtlsauthn"],
        vec![version],
    )
}

pub(super) fn network_authentication() -> CustomResourceDefinition {
    let spec = object(
        "The definition.",
        [req(
            "networks",
            not_empty(networks("Networks, one of which must hold the client.")),
        )],
    );
    let version = Version::new("v1alpha1", "Clients by where they are.", spec);
    definition(
        Kind::NetworkAuthentication,
        &["netauthn", "networkauthn"],
        vec![version],
    )
}

pub(super) fn egress_network() -> CustomResourceDefinition {
    let spec = object(
        "The definition.",
        [
            req(
                "trafficPolicy",
                choice(
                    "What happens to traffic that no route takes.",
                    &["Allow", "Deny"],
                ),
            ),
            opt(
                "networks",
                not_empty(networks(
                    "Networks it stands for; everything but the networks of the cluster if it is absent.",
                )),
            ),
        ],
    );
    let version = Version {
        status: Some(status::of_conditions()),
        columns: vec![
            column(
                "Traffic Policy",
                "string",
                ".spec.trafficPolicy",
                "What happens to traffic that no route takes.",
            ),
            age(),
        ],
        ..Version::new(
            "v1alpha1",
            "Destinations outside of the cluster, a parent of routes.",
            spec,
        )
    };
    definition(Kind::EgressNetwork, &[], vec![version])
}

pub(super) fn http_local_rate_limit_policy() -> CustomResourceDefinition {
    let limited = |description, more: Option<Field>| {
        let rate = req(
            "requestsPerSecond",
            integer("Requests per second.", 1, Some(u32::MAX)),
        );
        object(description, [rate].into_iter().chain(more))
    };
    let clients = not_empty(at_most(
        MAX_OVERRIDES,
        list(
            "Clients that share the limit.",
            namespaced_ref("A ServiceAccount."),
        ),
    ));
    let overrides = at_most(
        MAX_OVERRIDES,
        list(
            "Limits of certain clients, instead of the one for each client.",
            limited(
                "A limit of certain clients.",
                Some(req("clientRefs", clients)),
            ),
        ),
    );
    let spec = object(
        "The definition.",
        [
            req("targetRef", local_ref("A Server of this namespace.")),
            opt("total", limited("Limit of all clients together.", None)),
            opt("identity", limited("Limit of each client.", None)),
            opt("overrides", overrides),
        ],
    );
    let spec = rule(
        spec,
        "self.targetRef.kind.lowerAscii() == 'server'",
        "the target is a Server",
    );
    let spec = rule(
        spec,
        "!has(self.total) || !has(self.identity) || self.identity.requestsPerSecond <= self.total.requestsPerSecond",
        "the limit of each client is above the limit of all together",
    );
    let spec = rule(
        spec,
        "!has(self.total) || !has(self.overrides) || self.overrides.all(o, o.requestsPerSecond <= self.total.requestsPerSecond)",
        "the limit of an override is above the limit of all clients together",
    );
    let version = Version {
        status: Some(status::of_target()),
        columns: vec![
            column(
                "Target_kind",
                "string",
                ".spec.targetRef.kind",
                "What is limited.",
            ),
            column(
                "Target_name",
                "string",
                ".spec.targetRef.name",
                "Which one is limited.",
            ),
            column(
                "Total_RPS",
                "integer",
                ".spec.total.requestsPerSecond",
                "Requests per second of all clients together.",
            ),
            column(
                "Identity_RPS",
                "integer",
                ".spec.identity.requestsPerSecond",
                "Requests per second of each client.",
            ),
        ],
        ..Version::new(
            "v1alpha1",
            "Limits the rate of HTTP requests at each pod behind a Server.",
            spec,
        )
    };
    definition(Kind::HttpLocalRateLimitPolicy, &[], vec![version])
}
