//! Owns the metrics of the injector (contract 9.1): what was asked and what was answered, with a label for each config annotation in
//! effect. The others are left out, which is the same to Prometheus as an empty label. Does not serve them.

use weft_runtime::metrics::{Counter, Family, Registry};

use crate::patch::{Decision, Refusal};

type Labels = Vec<(String, String)>;

/// Longest value of a label: annotations are as long as their authors like.
const VALUE_MAX: usize = 64;

/// The counters. Clones count the same.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Family<Labels, Counter>,
    responses: Family<Labels, Counter>,
    events_dropped: Counter,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Self {
        let (requests, responses) = (Family::new(Counter::default), Family::new(Counter::default));
        registry.register(
            "proxy_inject_admission_requests_total",
            "Objects the API server asked about",
            requests.clone(),
        );
        registry.register(
            "proxy_inject_admission_responses_total",
            "What was answered",
            responses.clone(),
        );
        Self {
            requests,
            responses,
            events_dropped: registry.counter(
                "weft_injector_events_dropped_total",
                "Events that were not posted because too many were waiting",
            ),
        }
    }

    /// Counts a request and its answer.
    pub fn count(&self, owner_kind: &str, namespace: &str, decided: &Result<Decision, Refusal>) {
        let (annotation_at, settings, reason) = match decided {
            Ok(decision) => {
                let reasons: Vec<_> = decision.skip.iter().map(|skip| skip.as_str()).collect();
                (
                    decision.annotation_at,
                    Some(&decision.settings),
                    reasons.join(","),
                )
            }
            Err(_) => ("", None, "refused".to_owned()),
        };
        let mut labels = vec![
            label("owner_kind", owner_kind),
            label("namespace", namespace),
            label("annotation_at", annotation_at),
        ];
        let settings = settings.into_iter().flatten();
        labels.extend(settings.map(|(name, value)| label(name, value)));
        self.requests.resolve(&labels).inc();
        labels.push(label("skip", &(!reason.is_empty()).to_string()));
        labels.push(("skip_reason".to_owned(), reason));
        self.responses.resolve(&labels).inc();
    }

    /// Counts an Event that nobody will see.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }
}

fn label(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.chars().take(VALUE_MAX).collect())
}
