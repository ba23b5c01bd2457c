//! Owns the tokens by which proxies say who they are (contract 8.1, 8.2); they are hints, not proofs.

use serde::Deserialize;

/// What a token says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workload {
    /// Namespace.
    #[serde(rename = "ns")]
    pub namespace: Option<String>,
    /// Pod.
    pub pod: Option<String>,
    /// External workload.
    #[serde(rename = "external_workload")]
    pub external_workload: Option<String>,
    /// Node.
    pub node_name: Option<String>,
}

/// Longest token that is looked at.
const MAX_TOKEN: usize = 4096;

impl Workload {
    /// Reads a context token of `Get`: JSON or `ns:<namespace>`; anything else says nothing.
    pub fn from_context(token: &str) -> Self {
        let token = token.trim();
        if let Some(namespace) = token.strip_prefix("ns:") {
            return Self {
                namespace: Some(namespace.to_owned()),
                ..Self::default()
            };
        }
        Self::from_json(token).unwrap_or_else(|| {
            if !token.is_empty() {
                tracing::debug!("context token is not JSON, it is ignored");
            }
            Self::default()
        })
    }

    /// Reads a policy workload: JSON or `<namespace>:<pod>`, with white space around it (contract 8.2).
    pub fn from_policy(token: &str) -> Option<Self> {
        let token = token.trim();
        if token.starts_with('{') {
            return Self::from_json(token).filter(|workload| {
                workload.namespace.as_ref().is_some_and(|ns| !ns.is_empty())
                    && workload.pod.is_some() != workload.external_workload.is_some()
            });
        }
        let (namespace, pod) = token.split_once(':')?;
        if namespace.is_empty() || pod.is_empty() || token.len() > MAX_TOKEN {
            return None;
        }
        Some(Self {
            namespace: Some(namespace.to_owned()),
            pod: Some(pod.to_owned()),
            ..Self::default()
        })
    }

    fn from_json(token: &str) -> Option<Self> {
        if token.len() > MAX_TOKEN {
            None
        } else {
            serde_json::from_str(token).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts() {
        let json = Workload::from_context("{\"ns\":\"a\", \"nodeName\":\"n\", \"pod\":\"p\"}\n");
        assert_eq!(
            (
                json.namespace.as_deref(),
                json.node_name.as_deref(),
                json.pod.as_deref()
            ),
            (Some("a"), Some("n"), Some("p"))
        );
        assert_eq!(
            Workload::from_context("ns:a").namespace.as_deref(),
            Some("a")
        );
        assert_eq!(Workload::from_context("garbage"), Workload::default());
        assert_eq!(Workload::from_context(""), Workload::default());
    }

    #[test]
    fn policy_workloads() {
        let pair = |token| {
            Workload::from_policy(token)
                .map(|w| (w.namespace.unwrap_or_default(), w.pod.unwrap_or_default()))
        };
        let expected = Some(("a".to_owned(), "p".to_owned()));
        assert_eq!(pair("a:p"), expected);
        assert_eq!(pair(" {\"ns\":\"a\",\"pod\":\"p\"}\n"), expected);
        for bad in [
            "",
            "a",
            ":p",
            "a:",
            "{}",
            "{\"ns\":\"a\"}",
            "{\"ns\":\"a\",\"pod\":\"p\",\"external_workload\":\"e\"}",
            "{",
        ] {
            assert_eq!(Workload::from_policy(bad), None, "{bad}");
        }
    }
}
