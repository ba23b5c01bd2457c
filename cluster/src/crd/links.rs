//! Owns the definition of the Link (contract 10).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    Version, definition,
    schema::{Field, Schema, list, object, opt, selector, string, with_default},
    status,
};
use crate::objects::Kind;

const DESCRIPTION: &str = "Another cluster whose Services are mirrored here.";

pub(super) fn link() -> CustomResourceDefinition {
    let federated = || {
        opt(
            "federatedServiceSelector",
            selector("Services that join a federated Service."),
        )
    };
    let excluded = || {
        [
            opt(
                "excludedAnnotations",
                list(
                    "Annotations that mirrors do not take over.",
                    string("Its name, or a prefix and *."),
                ),
            ),
            opt(
                "excludedLabels",
                list(
                    "Labels that mirrors do not take over.",
                    string("Its name, or a prefix and *."),
                ),
            ),
        ]
    };
    let version = |name, more: Vec<Field>| Version {
        spec_optional: true,
        ..Version::new(name, DESCRIPTION, spec(more))
    };
    let with_status = |version| Version {
        status: Some(status::of_link()),
        ..version
    };
    let newest: Vec<Field> = [federated()].into_iter().chain(excluded()).collect();
    let versions = vec![
        version("v1alpha1", Vec::new()),
        with_status(version("v1alpha2", vec![federated()])),
        with_status(version("v1alpha3", newest)),
    ];
    definition(Kind::Link, &[], versions)
}

fn spec(more: Vec<Field>) -> Schema {
    let probe = object(
        "How its gateway is probed.",
        [
            opt(
                "failureThreshold",
                with_default(string("Failures in a row until it counts as down."), "3"),
            ),
            opt("path", string("Path.")),
            opt("port", string("Port, a number.")),
            opt("period", string("Time between probes.")),
            opt(
                "timeout",
                with_default(string("Time limit of a probe."), "30s"),
            ),
        ],
    );
    let fields = [
        opt("targetClusterName", string("Name of the other cluster.")),
        opt(
            "targetClusterDomain",
            string("Domain of its Service names."),
        ),
        opt(
            "targetClusterLinkerdNamespace",
            string("Namespace of its control plane."),
        ),
        opt(
            "clusterCredentialsSecret",
            string("Secret with the credentials for its API server."),
        ),
        opt(
            "gatewayAddress",
            string("Addresses of its gateway, separated by commas."),
        ),
        opt("gatewayIdentity", string("Identity of its gateway.")),
        opt("gatewayPort", string("Port of its gateway, a number.")),
        opt("probeSpec", probe),
        opt(
            "selector",
            selector("Services that are mirrored through the gateway."),
        ),
        opt(
            "remoteDiscoverySelector",
            selector("Services whose endpoints are read from the other cluster."),
        ),
    ];
    object("The definition.", fields.into_iter().chain(more))
}
