//! Owns the definition of the policy.linkerd.io HTTPRoute (contract 8.2, 10). All its versions have one schema, which
//! only grew: what an older client does not know it does not send.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    Version, age, column, definition,
    schema::{
        Schema, at_most, bounded, choice, group, integer, kind, label, list, name, object, opt,
        pattern, port, req, rule, string, with_default,
    },
    status,
};
use crate::objects::Kind;

/// A host, with `*.` for all below it.
const HOST: &str = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// One host.
const ONE_HOST: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A field name of HTTP (RFC 9110, 5.1).
const HEADER_NAME: &str = r"^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$";
/// A duration of the Gateway API (GEP-2257).
const DURATION: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

pub(super) fn http_route() -> CustomResourceDefinition {
    let versions = ["v1alpha1", "v1beta1", "v1beta2", "v1beta3"].map(|version| Version {
        status: Some(status::of_route(parent())),
        columns: vec![
            column("Hostnames", "string", ".spec.hostnames", "Hosts it is for."),
            age(),
        ],
        ..Version::new(version, "Routes HTTP requests of its parents.", spec())
    });
    definition(Kind::PolicyHttpRoute, &[], versions.into())
}

fn spec() -> Schema {
    let host = pattern(bounded(string("A host."), 1, 253), HOST);
    let all =
        serde_json::json!([{ "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }] }]);
    object(
        "The definition.",
        [
            opt(
                "parentRefs",
                at_most(32, list("What it hangs on.", parent())),
            ),
            opt(
                "hostnames",
                at_most(16, list("Hosts it is for; all if there are none.", host)),
            ),
            opt(
                "rules",
                with_default(
                    at_most(
                        16,
                        list("What it takes and where that goes.", rule_schema()),
                    ),
                    all,
                ),
            ),
        ],
    )
}

fn parent() -> Schema {
    object(
        "A Server, a Service or an EgressNetwork.",
        [
            opt(
                "group",
                with_default(
                    group("Its API group; empty or core for a Service."),
                    "policy.linkerd.io",
                ),
            ),
            opt("kind", with_default(kind("Its kind."), "Gateway")),
            opt(
                "namespace",
                label("Its namespace; that of the route if it is absent."),
            ),
            req("name", name("Its name.")),
            opt(
                "sectionName",
                name("A part of it; has no meaning for the kinds above."),
            ),
            opt("port", port("Its port; all if it is absent.")),
        ],
    )
}

fn rule_schema() -> Schema {
    let with_all = serde_json::json!([{ "path": { "type": "PathPrefix", "value": "/" } }]);
    let matches = at_most(
        8,
        list("Requests it takes: one of these must hold.", matcher()),
    );
    object(
        "Requests and where they go.",
        [
            opt("matches", with_default(matches, with_all)),
            opt("filters", filters()),
            opt(
                "backendRefs",
                at_most(
                    16,
                    list(
                        "Where requests go, in shares by weight; to the parent if there are none.",
                        backend(),
                    ),
                ),
            ),
            opt("timeouts", timeouts()),
        ],
    )
}

fn matcher() -> Schema {
    let path = object(
        "The path.",
        [
            opt(
                "type",
                with_default(
                    choice(
                        "How it is compared.",
                        &["Exact", "PathPrefix", "RegularExpression"],
                    ),
                    "PathPrefix",
                ),
            ),
            opt(
                "value",
                with_default(bounded(string("What it is compared with."), 0, 1_024), "/"),
            ),
        ],
    );
    let path = rule(
        path,
        "self.type == 'RegularExpression' || self.value.startsWith('/')",
        "a path begins with /",
    );
    let value = |description, name| {
        object(
            description,
            [
                opt(
                    "type",
                    with_default(
                        choice("How it is compared.", &["Exact", "RegularExpression"]),
                        "Exact",
                    ),
                ),
                req("name", name),
                req(
                    "value",
                    bounded(string("What it is compared with."), 1, 4_096),
                ),
            ],
        )
    };
    object(
        "All of these must hold.",
        [
            opt("path", path),
            opt(
                "headers",
                at_most(16, list("Headers.", value("A header.", header_name()))),
            ),
            opt(
                "queryParams",
                at_most(
                    16,
                    list(
                        "Query parameters.",
                        value("A query parameter.", bounded(string("Its name."), 1, 256)),
                    ),
                ),
            ),
            opt(
                "method",
                choice(
                    "The method.",
                    &[
                        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE",
                        "PATCH",
                    ],
                ),
            ),
        ],
    )
}

fn header_name() -> Schema {
    pattern(bounded(string("Its name."), 1, 256), HEADER_NAME)
}

fn filters() -> Schema {
    let modifier = |description| {
        let header = || {
            object(
                "A header.",
                [
                    req("name", header_name()),
                    req("value", bounded(string("Its value."), 1, 4_096)),
                ],
            )
        };
        object(
            description,
            [
                opt("set", at_most(16, list("Headers to replace.", header()))),
                opt("add", at_most(16, list("Headers to add.", header()))),
                opt(
                    "remove",
                    at_most(16, list("Headers to remove.", string("Its name."))),
                ),
            ],
        )
    };
    let mut filter = object(
        "A change of requests or responses.",
        [
            req(
                "type",
                choice(
                    "What it does; the field of that name says how.",
                    &[
                        "RequestHeaderModifier",
                        "ResponseHeaderModifier",
                        "RequestRedirect",
                    ],
                ),
            ),
            opt(
                "requestHeaderModifier",
                modifier("Changes headers of requests."),
            ),
            opt(
                "responseHeaderModifier",
                modifier("Changes headers of responses."),
            ),
            opt("requestRedirect", redirect()),
        ],
    );
    for (type_, field) in [
        ("RequestHeaderModifier", "requestHeaderModifier"),
        ("ResponseHeaderModifier", "responseHeaderModifier"),
        ("RequestRedirect", "requestRedirect"),
    ] {
        filter = rule(
            filter,
            &format!("(self.type == '{type_}') == has(self.{field})"),
            &format!("{field} goes with type {type_}"),
        );
    }
    at_most(16, list("Changes, in order.", filter))
}

fn redirect() -> Schema {
    let path = object(
        "Changes the path.",
        [
            req(
                "type",
                choice("What of it.", &["ReplaceFullPath", "ReplacePrefixMatch"]),
            ),
            opt(
                "replaceFullPath",
                bounded(string("The new path."), 0, 1_024),
            ),
            opt(
                "replacePrefixMatch",
                bounded(string("The new prefix."), 0, 1_024),
            ),
        ],
    );
    let path = rule(
        path,
        "self.type == 'ReplaceFullPath' ? has(self.replaceFullPath) : has(self.replacePrefixMatch)",
        "give the field that goes with type",
    );
    let host = pattern(
        bounded(string("Host; as requested if it is absent."), 1, 253),
        ONE_HOST,
    );
    object(
        "Answers with a redirect.",
        [
            opt(
                "scheme",
                choice("Scheme; as requested if it is absent.", &["http", "https"]),
            ),
            opt("hostname", host),
            opt("path", path),
            opt("port", port("Port; that of the scheme if it is absent.")),
            opt(
                "statusCode",
                integer("Status of the answer, 302 if it is absent.", 300, Some(399)),
            ),
        ],
    )
}

fn backend() -> Schema {
    object(
        "Where requests go.",
        [
            opt(
                "group",
                with_default(group("Its API group; empty for a Service."), ""),
            ),
            opt("kind", with_default(kind("Its kind."), "Service")),
            req("name", name("Its name.")),
            opt(
                "namespace",
                label("Its namespace; that of the route if it is absent."),
            ),
            opt("port", port("Its port; a Service needs one.")),
            opt(
                "weight",
                with_default(integer("Its share of requests.", 0, Some(1_000_000)), 1),
            ),
            opt("filters", filters()),
        ],
    )
}

fn timeouts() -> Schema {
    let limit = |description| pattern(bounded(string(description), 1, 32), DURATION);
    let timeouts = object(
        "Time limits; 0s is none.",
        [
            opt("request", limit("Of the whole exchange.")),
            opt("backendRequest", limit("Of one attempt.")),
        ],
    );
    rule(
        timeouts,
        "!has(self.request) || !has(self.backendRequest) || duration(self.request) == duration('0s') || duration(self.backendRequest) <= duration(self.request)",
        "backendRequest is longer than request",
    )
}
