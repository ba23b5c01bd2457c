//! The lease with a paused clock, and over real connections.

use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinHandle;

use super::*;
use crate::testing::FakeApi;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/policy-controller-write";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/linkerd/deployments/linkerd-destination";

struct Replica {
    held: Held,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn settings(holder: &str, terms: Terms) -> Settings {
    Settings {
        namespace: "linkerd".to_owned(),
        holder: holder.to_owned(),
        deployment: "linkerd-destination".to_owned(),
        terms,
    }
}

fn start(client: Client, holder: &str, terms: Terms) -> Replica {
    let (contender, held) = Contender::new(client, settings(holder, terms));
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(contender.run(shutdown.clone()));
    Replica {
        held,
        shutdown,
        task,
    }
}

fn replica(api: &Arc<FakeApi>, holder: &str) -> Replica {
    start(api.client(), holder, Terms::default())
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lets time pass; never do two hold the lease.
async fn pass(time: Duration, replicas: &[&Replica]) {
    until(time, replicas, || false).await;
}

/// Lets time pass until the condition holds, and says how long it took.
async fn until(
    limit: Duration,
    replicas: &[&Replica],
    condition: impl Fn() -> bool,
) -> Option<Duration> {
    let started = Instant::now();
    while started.elapsed() < limit {
        let holders = replicas.iter().filter(|r| r.held.left().is_some()).count();
        assert!(holders <= 1, "{holders} hold the lease");
        if condition() {
            return Some(started.elapsed());
        }
        sleep(Duration::from_millis(50)).await;
    }
    None
}

fn lease(holder: &str, renew_time: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": NAME, "namespace": "linkerd"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 30, "renewTime": renew_time, "leaseTransitions": 4}
    })
}

#[tokio::test(start_paused = true)]
async fn the_first_one_makes_the_lease_and_renews_it() {
    let api = FakeApi::new();
    api.put(
        DEPLOYMENT,
        json!({"metadata": {"name": "linkerd-destination", "uid": "d-1"}}),
    );
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    let left = a.held.left().unwrap();
    assert!(
        left > seconds(27) && left <= seconds(28),
        "29 s, of which 1 s is over"
    );
    let made = api.find(PATH).unwrap();
    assert_eq!(made["spec"]["holderIdentity"], "a");
    assert_eq!(made["spec"]["leaseDurationSeconds"], 30);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "linkerd-destination", "uid": "d-1", "controller": true}]);
    assert_eq!(made["metadata"]["ownerReferences"], owner);
    pass(seconds(300), &[&a]).await;
    assert!(a.held.left().unwrap() >= seconds(19), "renewed every 10 s");
    let kept = api.find(PATH).unwrap();
    assert_eq!(kept["spec"]["acquireTime"], made["spec"]["acquireTime"]);
    assert_eq!(kept["spec"]["leaseTransitions"], 0);
    let writes = api.writes();
    assert!(writes.iter().all(|w| {
        w.uri
            .query()
            .unwrap_or_default()
            .contains("fieldManager=policy-controller")
    }));
    assert!(
        (30..=31).contains(&writes.len()),
        "{} writes in 301 s",
        writes.len()
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_deployment_the_lease_has_no_owner() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    assert!(a.held.left().is_some());
    assert_eq!(
        api.find(PATH).unwrap()["metadata"]["ownerReferences"],
        Value::Null
    );
}

#[tokio::test(start_paused = true)]
async fn r18_one_of_two_writes_and_the_other_follows_when_it_is_gone() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    let b = replica(&api, "b");
    pass(seconds(120), &[&a, &b]).await;
    assert!(a.held.left().is_some() && b.held.left().is_none());
    // As kill -9 or SIGSTOP: nobody gives the lease back.
    a.task.abort();
    let took = until(seconds(60), &[&a, &b], || b.held.left().is_some())
        .await
        .unwrap();
    assert!(took > seconds(19) && took < seconds(36), "{took:?}");
    let taken = api.find(PATH).unwrap();
    assert_eq!(
        (
            &taken["spec"]["holderIdentity"],
            &taken["spec"]["leaseTransitions"]
        ),
        (&json!("b"), &json!(1))
    );
}

#[tokio::test(start_paused = true)]
async fn r18_a_holder_that_cannot_renew_stops_before_another_may_begin() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    let b = replica(&api, "b");
    pass(seconds(30), &[&a, &b]).await;
    let left = a.held.left().unwrap();
    api.set_down(true);
    let stopped = until(seconds(60), &[&a, &b], || a.held.left().is_none())
        .await
        .unwrap();
    assert!(stopped.abs_diff(left) < seconds(1), "{left:?} {stopped:?}");
    // Whoever comes first when it is back holds it; nobody before.
    pass(seconds(60), &[&a, &b]).await;
    assert!(a.held.left().is_none() && b.held.left().is_none());
    api.set_down(false);
    let back = until(seconds(30), &[&a, &b], || {
        a.held.left().is_some() || b.held.left().is_some()
    })
    .await;
    assert!(back.unwrap() < seconds(11));
    pass(seconds(120), &[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_is_as_one_that_is_away() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    api.set_slow(seconds(3600));
    let stopped = until(seconds(60), &[&a], || a.held.left().is_none())
        .await
        .unwrap();
    assert!(stopped <= seconds(29), "{stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_the_other_does_not_matter() {
    for renewed in ["2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let api = FakeApi::new();
        api.put(PATH, lease("other", renewed));
        let a = replica(&api, "a");
        let took = until(seconds(60), &[&a], || a.held.left().is_some())
            .await
            .unwrap();
        assert!(
            took >= seconds(30) && took < seconds(31),
            "{renewed}: {took:?}"
        );
        assert_eq!(api.find(PATH).unwrap()["spec"]["leaseTransitions"], 5);
    }
    // One that renews is left alone, whatever time it believes in.
    let api = FakeApi::new();
    let a = replica(&api, "a");
    for minute in 10..40 {
        api.put(
            PATH,
            lease("other", &format!("2001-01-01T00:{minute}:00.000000Z")),
        );
        pass(seconds(10), &[&a]).await;
        assert!(a.held.left().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_second_to_write_does_not_hold() {
    let api = FakeApi::new();
    api.put(PATH, lease("", "2001-01-01T00:00:00.000000Z"));
    api.set_conflicts(1);
    let a = replica(&api, "a");
    pass(seconds(4), &[&a]).await;
    assert!(a.held.left().is_none());
    pass(seconds(2), &[&a]).await;
    assert!(a.held.left().is_some(), "tried again");
}

#[tokio::test(start_paused = true)]
async fn of_several_that_take_it_at_the_same_moment_one_holds() {
    let api = FakeApi::new();
    api.put(PATH, lease("gone", "2001-01-01T00:00:00.000000Z"));
    // All have read the same version before any of them writes.
    api.set_slow(Duration::from_millis(100));
    let replicas = ["a", "b", "c"].map(|holder| replica(&api, holder));
    let [a, b, c] = &replicas;
    pass(seconds(120), &[a, b, c]).await;
    let holders = replicas.iter().filter(|r| r.held.left().is_some()).count();
    assert_eq!(holders, 1);
    let refused = api.writes().iter().filter(|w| w.status == 409).count();
    assert_eq!(refused, 2, "the others were too late");
    let spec = api.find(PATH).unwrap()["spec"].clone();
    assert_eq!(spec["leaseTransitions"], 5, "taken once");
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_does_not_cost_the_lease() {
    let api = FakeApi::new();
    api.put(
        DEPLOYMENT,
        json!({"metadata": {"name": "linkerd-destination", "uid": "d-1"}}),
    );
    api.set_slow(seconds(4));
    let a = replica(&api, "a");
    pass(seconds(30), &[&a]).await;
    for _ in 0..120 {
        pass(seconds(1), &[&a]).await;
        assert!(a.held.left().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_finds_another_name_stops() {
    let api = FakeApi::new();
    let mut a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    api.put(PATH, lease("other", "2001-01-01T00:00:00.000000Z"));
    a.held.0.mark_unchanged();
    a.held.changed().await;
    assert!(a.held.left().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_name_goes_on() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    api.put(PATH, lease("a", "2001-01-01T00:00:00.000000Z"));
    pass(seconds(10), &[&a]).await;
    assert!(a.held.left().is_some(), "it is ours");
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_gives_it_back() {
    let api = FakeApi::new();
    let a = replica(&api, "a");
    pass(seconds(1), &[&a]).await;
    let b = replica(&api, "b");
    pass(seconds(5), &[&a, &b]).await;
    a.shutdown.cancel();
    let took = until(seconds(60), &[&a, &b], || b.held.left().is_some())
        .await
        .unwrap();
    assert!(took < seconds(6), "{took:?}");
    a.task.await.unwrap();
    // One that does not hold it leaves the other's alone.
    let c = replica(&api, "c");
    pass(seconds(1), &[&b, &c]).await;
    c.shutdown.cancel();
    c.task.await.unwrap();
    assert_eq!(api.find(PATH).unwrap()["spec"]["holderIdentity"], "b");
}

#[tokio::test]
async fn two_contend_over_real_connections() {
    let api = FakeApi::new();
    let terms = Terms {
        duration: seconds(2),
        grace: Duration::from_millis(200),
        renew: Duration::from_millis(500),
        retry: Duration::from_millis(400),
    };
    let replicas = [
        start(api.serve().await, "a", terms),
        start(api.serve().await, "b", terms),
    ];
    let [a, b] = &replicas;
    let one = until(seconds(20), &[a, b], || {
        a.held.left().is_some() || b.held.left().is_some()
    })
    .await;
    assert!(one.is_some());
    pass(seconds(3), &[a, b]).await;
    let (holder, other) = match a.held.left() {
        Some(_) => (a, b),
        None => (b, a),
    };
    assert!(holder.held.left().is_some());
    holder.task.abort();
    let took = until(seconds(20), &[a, b], || other.held.left().is_some())
        .await
        .unwrap();
    assert!(took > seconds(1), "{took:?}");
    api.set_down(true);
    let stopped = until(seconds(20), &[a, b], || other.held.left().is_none()).await;
    assert!(stopped.is_some());
    api.set_down(false);
    assert!(
        until(seconds(20), &[a, b], || other.held.left().is_some())
            .await
            .is_some()
    );
}
