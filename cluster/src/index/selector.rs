//! Owns label selectors, read once and matched often; does not know what is selected.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::notes::Notes;

/// A label selector; an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<(String, Operator)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Selects by equal labels.
    pub fn equal(labels: &BTreeMap<String, String>) -> Self {
        let terms = labels
            .iter()
            .map(|(k, v)| (k.clone(), Operator::In(vec![v.clone()])))
            .collect();
        Self { terms }
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.terms.iter().all(|(key, operator)| {
            let value = labels.get(key);
            match operator {
                Operator::In(values) => value.is_some_and(|v| values.contains(v)),
                Operator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// Reads a selector; an unknown operator refuses the object.
    pub(super) fn read(selector: &LabelSelector, field: &str, notes: &mut Notes) -> Option<Self> {
        let mut read = Self::equal(selector.match_labels.as_ref().unwrap_or(&BTreeMap::new()));
        for (index, term) in selector.match_expressions.iter().flatten().enumerate() {
            match operator(term) {
                Some(operator) => read.terms.push((term.key.clone(), operator)),
                None => {
                    let field = format!("{field}.matchExpressions[{index}].operator");
                    let reason = format!(
                        "{:?} is not one of In, NotIn, Exists, DoesNotExist",
                        term.operator
                    );
                    return notes.refuse(&field, reason);
                }
            }
        }
        Some(read)
    }
}

fn operator(term: &LabelSelectorRequirement) -> Option<Operator> {
    let values = || term.values.clone().unwrap_or_default();
    Some(match term.operator.as_str() {
        "In" => Operator::In(values()),
        "NotIn" => Operator::NotIn(values()),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return None,
    })
}
