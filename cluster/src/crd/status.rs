//! Owns the schemas of what controllers say about objects; does not own who says what.

use super::schema::{
    Schema, at_most, bounded, choice, integer, list, local_ref, object, opt, pattern, req, string,
};

const CONDITION_TYPE: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
const REASON: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// A status that is a list of conditions.
pub(super) fn of_conditions() -> Schema {
    object(
        "What controllers say about it.",
        [opt("conditions", conditions())],
    )
}

/// A status that names the target it is about.
pub(super) fn of_target() -> Schema {
    object(
        "What controllers say about it.",
        [
            opt("conditions", conditions()),
            req("targetRef", local_ref("The target that was looked at.")),
        ],
    )
}

/// The status of a route, an entry for each parent and controller.
pub(super) fn of_route(parent: Schema) -> Schema {
    let entry = object(
        "What one controller says about one parent.",
        [
            req("parentRef", parent),
            req("controllerName", controller()),
            opt("conditions", conditions()),
        ],
    );
    object(
        "What controllers say about it.",
        [req(
            "parents",
            at_most(32, list("An entry for each parent and controller.", entry)),
        )],
    )
}

/// The status of a Link, an entry for each Service.
pub(super) fn of_link() -> Schema {
    let service = || {
        let remote = object(
            "The Service in the other cluster.",
            [
                opt("group", string("Its API group; empty for core kinds.")),
                opt("kind", string("Its kind.")),
                req("name", string("Its name.")),
                opt("namespace", string("Its namespace.")),
            ],
        );
        object(
            "What one controller says about one Service.",
            [
                req("controllerName", controller()),
                req("remoteRef", remote),
                opt("conditions", conditions()),
            ],
        )
    };
    object(
        "What controllers say about it.",
        [
            opt(
                "mirrorServices",
                list("An entry for each mirrored Service.", service()),
            ),
            opt(
                "federatedServices",
                list(
                    "An entry for each Service that joined a federated one.",
                    service(),
                ),
            ),
        ],
    )
}

fn controller() -> Schema {
    bounded(
        string("The controller, e.g. linkerd.io/policy-controller."),
        1,
        253,
    )
}

fn conditions() -> Schema {
    let time = |description| Schema {
        format: Some("date-time".to_owned()),
        ..string(description)
    };
    let condition = object(
        "One aspect of its state.",
        [
            req(
                "type",
                pattern(bounded(string("The aspect."), 1, 316), CONDITION_TYPE),
            ),
            req(
                "status",
                choice("Whether it holds.", &["True", "False", "Unknown"]),
            ),
            opt(
                "reason",
                pattern(bounded(string("Why, in one word."), 1, 1024), REASON),
            ),
            opt("message", bounded(string("Why, for people."), 0, 32_768)),
            opt(
                "observedGeneration",
                integer("Generation of the object that was looked at.", 0, None),
            ),
            opt("lastTransitionTime", time("When the status last changed.")),
            opt("lastProbeTime", time("When it was last looked at.")),
        ],
    );
    list("Aspects of its state.", condition)
}
