//! Owns the definition of the ExternalWorkload (contract 10).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    Version, age, column, definition,
    schema::{
        Schema, at_most, bounded, choice, list, object, opt, port, req, string, with_default,
    },
    status,
};
use crate::objects::Kind;

pub(super) fn external_workload() -> CustomResourceDefinition {
    // Only the name of one field differs; the API server does not convert, so the older version shows no TLS of newer
    // objects.
    let versions =
        [("v1alpha1", "meshTls"), ("v1beta1", "meshTLS")].map(|(version, tls)| Version {
            status: Some(status::of_conditions()),
            columns: vec![
                column(
                    "Identity",
                    "string",
                    &format!(".spec.{tls}.identity"),
                    "Who it is.",
                ),
                age(),
            ],
            ..Version::new(
                version,
                "A meshed program outside of the cluster.",
                spec(tls),
            )
        });
    definition(Kind::ExternalWorkload, &[], versions.into())
}

fn spec(tls: &'static str) -> Schema {
    let names = object(
        "The names in its certificate.",
        [
            req(
                "identity",
                bounded(string("Its identity, a DNS name or a SPIFFE ID."), 1, 253),
            ),
            req(
                "serverName",
                bounded(string("The name that clients ask for (SNI)."), 1, 253),
            ),
        ],
    );
    let port = object(
        "A port.",
        [
            opt(
                "name",
                bounded(
                    string(
                        "Its name, by which Services find it; linkerd-proxy is the inbound port of its proxy.",
                    ),
                    1,
                    63,
                ),
            ),
            req("port", port("Its number.")),
            opt(
                "protocol",
                with_default(choice("Its transport.", &["TCP", "UDP"]), "TCP"),
            ),
        ],
    );
    let ip = object(
        "An address.",
        [req("ip", bounded(string("IPv4 or IPv6."), 2, 45))],
    );
    object(
        "The definition.",
        [
            req(tls, names),
            opt("ports", list("Its ports.", port)),
            opt(
                "workloadIPs",
                at_most(2, list("Its addresses, at most one of each family.", ip)),
            ),
        ],
    )
}
