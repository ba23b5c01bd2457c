//! Owns the definition of the ServiceProfile (contract 9.6, 10).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    Version, definition,
    schema::{
        Schema, any_object, boolean, int_or_string, integer, list, number, object, opt, pattern,
        req, string,
    },
};
use crate::objects::Kind;

const DESCRIPTION: &str = "Routes, retries and other destinations of one Service, whose DNS name is the name of the object.";
/// A quantity of Kubernetes.
const QUANTITY: &str = r"^(\+|-)?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE](\+|-)?([0-9]+(\.[0-9]*)?|\.[0-9]+))?$";

pub(super) fn service_profile() -> CustomResourceDefinition {
    let versions = vec![
        Version {
            spec_optional: true,
            ..Version::new("v1alpha1", DESCRIPTION, spec(true))
        },
        Version {
            spec_optional: true,
            ..Version::new("v1alpha2", DESCRIPTION, spec(false))
        },
    ];
    definition(Kind::ServiceProfile, &["sp"], versions)
}

fn spec(needs_routes: bool) -> Schema {
    let routes = list("Routes; the first that takes a request counts.", route());
    object(
        "The definition.",
        [
            match needs_routes {
                true => req("routes", routes),
                false => opt("routes", routes),
            },
            opt("retryBudget", retry_budget()),
            opt(
                "dstOverrides",
                list("Destinations that take a share each.", destination()),
            ),
            opt(
                "opaquePorts",
                list(
                    "Ports without protocol detection.",
                    string("A port or a range of ports."),
                ),
            ),
        ],
    )
}

fn route() -> Schema {
    object(
        "A route.",
        [
            req("name", string("Its name in metrics.")),
            req("condition", request_match()),
            opt(
                "responseClasses",
                list(
                    "Which responses count as failures; the first that takes a response counts.",
                    object(
                        "A class of responses.",
                        [
                            req("condition", response_match()),
                            opt("isFailure", boolean("Whether these are failures.")),
                        ],
                    ),
                ),
            ),
            opt(
                "isRetryable",
                boolean("Whether failed requests may be sent again."),
            ),
            opt(
                "timeout",
                string("Time limit of the whole exchange, e.g. 300ms."),
            ),
        ],
    )
}

fn request_match() -> Schema {
    let inner = || any_object("A condition like this one.");
    object(
        "Requests it takes; everything that is given must hold.",
        [
            opt("all", list("All of these.", inner())),
            opt("any", list("One of these.", inner())),
            opt("not", any_object("Not this.")),
            opt("pathRegex", string("The whole path matches this.")),
            opt("method", string("The method.")),
        ],
    )
}

fn response_match() -> Schema {
    let inner = || any_object("A condition like this one.");
    let status = object(
        "A range of status codes.",
        [
            opt("min", integer("The first.", 100, Some(599))),
            opt("max", integer("The last.", 100, Some(599))),
        ],
    );
    object(
        "Responses it takes; everything that is given must hold.",
        [
            opt("all", list("All of these.", inner())),
            opt("any", list("One of these.", inner())),
            opt("not", any_object("Not this.")),
            opt("status", status),
        ],
    )
}

fn retry_budget() -> Schema {
    object(
        "How many retries there may be.",
        [
            req(
                "retryRatio",
                Schema {
                    format: Some("float".to_owned()),
                    ..number("Retries for each request, e.g. 0.2.", 0.0)
                },
            ),
            req(
                "minRetriesPerSecond",
                integer(
                    "Retries per second that are always allowed.",
                    0,
                    Some(u32::MAX),
                ),
            ),
            req("ttl", string("How long a request counts, e.g. 10s.")),
        ],
    )
}

fn destination() -> Schema {
    object(
        "A destination and its share.",
        [
            req(
                "authority",
                string("DNS name of a Service, with or without a port."),
            ),
            req(
                "weight",
                pattern(int_or_string("Its share, e.g. 900m or 1."), QUANTITY),
            ),
        ],
    )
}
