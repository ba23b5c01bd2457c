//! Views: sharing, waking, limits.

use std::path::Path;

use super::*;
use crate::{
    manifests,
    objects::{Name, Object},
};

/// The ports of a Service and of the Service of the same name with `-next`, read only if the first exists.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ports(Name);

impl Query for Ports {
    type State = Vec<u16>;
    type Settings = ();

    fn answer(&self, (): &(), index: &Reader<'_>, _: Option<&Vec<u16>>) -> Vec<u16> {
        let Some(first) = index.service(&self.0) else {
            return Vec::new();
        };
        let next = index.service(&Name::new(
            &self.0.namespace,
            &format!("{}-next", self.0.name),
        ));
        first
            .ports
            .iter()
            .chain(next.iter().flat_map(|s| &s.ports))
            .map(|p| p.number)
            .collect()
    }
}

fn service(name: &str, port: u16, annotation: &str) -> Object {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, annotations: {{config.linkerd.io/opaque-ports: '{annotation}'}}}}\nspec: {{ports: [{{port: {port}}}]}}\n"
    );
    manifests::parse(Path::new("a.yaml"), &text)
        .expect("valid")
        .remove(0)
}

fn web() -> Ports {
    Ports(Name::new("default", "web"))
}

#[tokio::test]
async fn equal_questions_share_one_state_that_ends_with_the_last_of_them() {
    let shared = Shared::new();
    let views = Views::new(Arc::clone(&shared), (), 10);
    let mut a = views.subscribe(web()).expect("room");
    let b = views.subscribe(web()).expect("room");
    assert_eq!((views.len(), views.state.lock().readers.len()), (1, 1));
    shared.apply(&service("web", 80, ""));
    assert_eq!(a.changed().await, [80]);
    drop(a);
    assert_eq!(views.len(), 1);
    drop(b);
    assert_eq!((views.len(), views.state.lock().readers.len()), (0, 0));
    // And again, with the state as it is now.
    assert_eq!(views.subscribe(web()).expect("room").latest(), [80]);
}

#[tokio::test]
async fn only_a_different_answer_wakes() {
    let shared = Shared::new();
    let views = Views::new(Arc::clone(&shared), (), 10);
    shared.apply(&service("web", 80, ""));
    let mut ports = views.subscribe(web()).expect("room");
    assert_eq!(ports.latest(), [80]);
    let quiet = |ports: &mut Subscription<Ports>| !ports.receiver().has_changed().expect("alive");
    shared.apply(&service("web", 80, "80"));
    shared.apply(&service("other", 80, ""));
    assert!(quiet(&mut ports));
    // What is read only because of something else counts as well, and no longer when it is not.
    shared.apply(&service("web-next", 81, ""));
    assert_eq!(ports.changed().await, [80, 81]);
    shared.delete(&service("web", 80, "").reference());
    assert_eq!(ports.changed().await, [0u16; 0]);
    shared.apply(&service("web-next", 82, ""));
    assert!(quiet(&mut ports));
    shared.apply(&service("web", 80, ""));
    assert_eq!(ports.changed().await, [80, 82]);
}

#[test]
fn several_changes_in_one_update_are_one_state() {
    let shared = Shared::new();
    let views = Views::new(Arc::clone(&shared), (), 10);
    let mut ports = views.subscribe(web()).expect("room");
    ports.latest();
    shared.update(|index| {
        let mut changed = index.apply(&service("web", 80, ""));
        changed.merge(index.apply(&service("web-next", 81, "")));
        changed
    });
    assert_eq!(ports.latest(), [80, 81]);
}

#[test]
fn the_number_of_questions_is_limited() {
    let views = Views::new(Shared::new(), (), 1);
    let first = views.subscribe(web()).expect("room");
    let other = Ports(Name::new("default", "other"));
    assert_eq!(
        views.subscribe(other.clone()).err(),
        Some(TooManyViews { limit: 1 })
    );
    assert!(
        views.subscribe(web()).is_ok(),
        "the same question takes no room"
    );
    drop(first);
    assert!(views.subscribe(other).is_ok());
}
