//! Tests of how series come and go, with a naive model for sweeping.

use super::*;
use proptest::prelude::*;

type Counters = Family<[(&'static str, u64); 1], Counter>;

const RETAIN: Duration = Duration::from_secs(600);

fn label(n: u64) -> [(&'static str, u64); 1] {
    [("n", n)]
}

#[test]
fn equal_labels_are_one_series_and_clones_share_it() {
    let family = Counters::new(Counter::default);
    family.resolve(&label(1)).inc();
    family.clone().resolve(&label(1)).inc_by(2);
    family.resolve(&label(2));
    assert_eq!(family.resolve(&label(1)).get(), 3);
    assert_eq!(family.len(), 2);
}

#[test]
fn an_idle_series_leaves_after_the_time_and_a_held_one_stays() {
    let family = Counters::new(Counter::default);
    let held = family.resolve(&label(1));
    family.resolve(&label(2)).inc();
    let start = Instant::now();
    for second in (0..600).step_by(60) {
        family.sweep(start + Duration::from_secs(second), RETAIN);
        assert_eq!(family.len(), 2, "after {second} s");
    }
    family.sweep(start + RETAIN, RETAIN);
    assert_eq!(family.len(), 1);
    family.sweep(start + 10 * RETAIN, RETAIN);
    assert_eq!(family.len(), 1);
    drop(held);
    family.sweep(start + 11 * RETAIN, RETAIN);
    assert!(
        family.is_empty(),
        "gone one retention after the last sweep that saw it held"
    );
}

#[test]
fn use_between_sweeps_counts_even_if_nobody_holds_it_then() {
    let family = Counters::new(Counter::default);
    let start = Instant::now();
    for i in 0..5 {
        family.resolve(&label(1)).inc();
        family.sweep(start + i * RETAIN, RETAIN);
        assert_eq!(family.len(), 1);
    }
    assert_eq!(family.resolve(&label(1)).get(), 5);
}

#[test]
fn a_full_family_counts_what_it_cannot_export() {
    let family = Counters::with_limit(Counter::default, 2);
    let (one, _two) = (family.resolve(&label(1)), family.resolve(&label(2)));
    family.resolve(&label(3)).inc();
    assert_eq!(
        family.resolve(&label(3)).get(),
        0,
        "detached from the family"
    );
    one.inc();
    assert_eq!(family.resolve(&label(1)).get(), 1);
    assert_eq!((family.len(), family.dropped()), (2, 2));
}

#[test]
fn ten_thousand_endpoints_an_hour_leave_no_trace() {
    // Case T11: 20 alive at a time, a sweep each minute.
    let family = Counters::new(Counter::default);
    let start = Instant::now();
    let mut alive = std::collections::VecDeque::new();
    let mut most = 0;
    for n in 0..10_000_u64 {
        alive.push_back(family.resolve(&label(n)));
        if alive.len() > 20 {
            alive.pop_front();
        }
        if n % 167 == 0 {
            family.sweep(start + Duration::from_millis(360 * n), RETAIN);
            most = most.max(family.len());
        }
    }
    assert!(most < 2_200, "{most} series");
    let end = start + Duration::from_secs(3_600);
    family.sweep(end, RETAIN);
    family.sweep(end + RETAIN, RETAIN);
    assert_eq!(family.len(), alive.len());
}

#[derive(Clone, Debug)]
enum Step {
    Hold(u64),
    Release(u64),
    Touch(u64),
    Sweep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_u64).prop_map(Step::Hold),
        (0..4_u64).prop_map(Step::Release),
        (0..4_u64).prop_map(Step::Touch),
        (0..400_u64).prop_map(Step::Sweep),
    ]
}

proptest! {
    /// The naive model keeps, for each label, the holders and the history of uses, and looks all of it through.
    #[test]
    fn sweeping_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 0..80)) {
        let family = Counters::new(Counter::default);
        let start = Instant::now();
        let mut clock = 0;
        let mut held: HashMap<u64, Vec<Arc<Counter>>> = HashMap::new();
        // Label → time of the last sweep before which it was used, none if it was not swept yet.
        let mut model: HashMap<u64, (bool, Option<u64>)> = HashMap::new();
        for step in steps {
            match step {
                Step::Hold(n) => {
                    held.entry(n).or_default().push(family.resolve(&label(n)));
                    model.entry(n).or_default().0 = true;
                }
                Step::Touch(n) => {
                    family.resolve(&label(n)).inc();
                    model.entry(n).or_default().0 = true;
                }
                Step::Release(n) => {
                    held.entry(n).or_default().pop();
                }
                Step::Sweep(after) => {
                    clock += after;
                    family.sweep(start + Duration::from_secs(clock), RETAIN);
                    let mut gone = Vec::new();
                    for (n, (used, last)) in &mut model {
                        let holders = held.get(n).map_or(0, Vec::len);
                        if std::mem::take(used) || holders > 0 {
                            *last = Some(clock);
                        } else if last.is_some_and(|last| clock - last >= RETAIN.as_secs()) {
                            gone.push(*n);
                        }
                    }
                    for n in gone {
                        model.remove(&n);
                    }
                }
            }
            prop_assert_eq!(family.len(), model.len());
        }
    }
}
