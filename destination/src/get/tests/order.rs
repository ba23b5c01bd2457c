//! The order of events does not matter (cases D01, D03): a property over slices, pods and the Service coming and going.

use proptest::prelude::*;

use super::*;

/// A change of one of four slices (two of them IPv6), or of one of six pods.
#[derive(Clone, Debug)]
enum Step {
    Slice(usize, Vec<usize>),
    NoSlice(usize),
    Pod(usize, bool),
    NoPod(usize),
    Service(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let pods = prop::collection::vec(0..6usize, 0..5);
    prop_oneof![
        4 => (0..4usize, pods).prop_map(|(slice, pods)| Step::Slice(slice, pods)),
        2 => (0..4usize).prop_map(Step::NoSlice),
        2 => (0..6usize, any::<bool>()).prop_map(|(pod, meshed)| Step::Pod(pod, meshed)),
        1 => (0..6usize).prop_map(Step::NoPod),
        1 => any::<bool>().prop_map(Step::Service),
    ]
}

impl Step {
    fn text(&self) -> (String, bool) {
        let slice_text = |index: usize, pods: &[usize]| {
            let six = index % 2 == 1;
            let address = |pod: &usize| {
                if six {
                    format!("fd00::{pod}")
                } else {
                    format!("10.1.0.{pod}")
                }
            };
            let endpoints: Vec<String> = pods
                .iter()
                .map(|p| at(&address(p), &format!("p{p}")))
                .collect();
            slice(
                &format!("s{index}"),
                if six { "IPv6" } else { "IPv4" },
                80,
                &endpoints,
            )
        };
        match self {
            Self::Slice(index, pods) => (slice_text(*index, pods), true),
            Self::NoSlice(index) => (slice_text(*index, &[]), false),
            Self::Pod(index, meshed) => (
                pod(&format!("p{index}"), if *meshed { MESHED } else { "" }, ""),
                true,
            ),
            Self::NoPod(index) => (pod(&format!("p{index}"), "", ""), false),
            Self::Service(there) => (SERVICE.to_owned(), *there),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Cases D01 and D03: whatever the order of events, the watched state and what a client has made of the messages are
    /// what somebody who sees only the final objects, in any order, gets.
    #[test]
    fn d01_d03_the_order_of_events_does_not_matter(
        steps in prop::collection::vec(step(), 1..40),
        seed in any::<u64>(),
        ipv6 in any::<bool>(),
    ) {
        let settings = || Settings::new(MeshSettings { enable_ipv6: ipv6, ..MeshSettings::default() });
        let (shared, watched) = views(settings());
        let mut client = Client::default();
        let service = objects(SERVICE).remove(0);
        shared.apply(&service);
        let mut stream = open(&watched);
        let mut last = BTreeMap::from([(service.reference(), service)]);
        for (index, step) in steps.iter().enumerate() {
            let (text, there) = step.text();
            let object = objects(&text).remove(0);
            if there {
                shared.apply(&object);
                last.insert(object.reference(), object);
            } else {
                shared.delete(&object.reference());
                last.remove(&object.reference());
            }
            // The client reads now and then.
            if (seed >> (index % 64)) & 1 == 1 {
                client.drain(&mut stream);
            }
        }
        client.drain(&mut stream);

        let (fresh, once) = views(settings());
        let mut remaining: Vec<Object> = last.into_values().collect();
        let mut random = seed;
        while !remaining.is_empty() {
            let index = usize::try_from(random % remaining.len() as u64).expect("small");
            random = random.rotate_left(7) ^ 0x9e37_79b9;
            fresh.apply(&remaining.swap_remove(index));
        }
        let expected = match once.once(&query()) {
            Endpoints::Known(set) => set,
            _ => Arc::default(),
        };
        prop_assert_eq!(&watched.once(&query()), &once.once(&query()));
        let held: BTreeMap<SocketAddr, WeightedAddr> =
            expected.addresses.iter().map(|(a, e)| (*a, WeightedAddr::clone(e))).collect();
        prop_assert_eq!(client.endpoints, held);
    }
}
