//! Owns time limits of routes: the annotations of routes and Services (contract 10.1) and the Gateway API's format of
//! durations (GEP-2257). Which one wins is decided where a policy is put together.

use std::{collections::BTreeMap, time::Duration};

use weft_core::parse;

use crate::index::notes::annotation_path;

/// Annotations `timeout.linkerd.io/{request,response,idle}`; zero counts as unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    /// Of the whole exchange.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Without any frame.
    pub idle: Option<Duration>,
}

/// Reads the annotations; `None` when there are none.
///
/// # Errors
/// The path of the annotation at fault, and what is wrong with it.
pub(in crate::index) fn timeout_annotations(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<RouteTimeouts>, (String, String)> {
    let limit = |name: &str| {
        let annotation = format!("timeout.linkerd.io/{name}");
        let Some(text) = annotations.and_then(|a| a.get(&annotation)) else {
            return Ok(None);
        };
        match parse::duration(text) {
            Ok(limit) => Ok(Some(limit).filter(|limit| !limit.is_zero())),
            Err(error) => Err((annotation_path(&annotation), error.to_string())),
        }
    };
    let timeouts = RouteTimeouts {
        request: limit("request")?,
        response: limit("response")?,
        idle: limit("idle")?,
    };
    Ok(Some(timeouts).filter(|timeouts| *timeouts != RouteTimeouts::default()))
}

/// `([0-9]{1,5}(h|m|s|ms)){1,4}`, GEP-2257.
pub(super) fn gateway_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at_checked(digits)?;
        if !(1..=5).contains(&number.len()) {
            return None;
        }
        let number: u64 = number.parse().ok()?;
        let (part, length) = match unit.as_bytes() {
            [b'm', b's', ..] => (Duration::from_millis(number), 2),
            [b'h', ..] => (Duration::from_secs(number * 3600), 1),
            [b'm', ..] => (Duration::from_secs(number * 60), 1),
            [b's', ..] => (Duration::from_secs(number), 1),
            _ => return None,
        };
        total += part;
        rest = unit.get(length..)?;
        if rest.is_empty() {
            return Some(total);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_durations_are_compound_and_bounded() {
        let millis = |text| gateway_duration(text).map(|d| d.as_millis());
        assert_eq!(millis("100ms"), Some(100));
        assert_eq!(millis("1h30m5s10ms"), Some(5_405_010));
        assert_eq!(millis("0s"), Some(0));
        for bad in [
            "",
            "1",
            "1.5s",
            "100000s",
            "s",
            "1d",
            "-1s",
            "1s1s1s1s1s",
            "1sé",
        ] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    #[test]
    fn zero_annotations_are_unset_and_bad_ones_name_their_path() {
        let annotations = |value: &str| {
            BTreeMap::from([("timeout.linkerd.io/idle".to_owned(), value.to_owned())])
        };
        assert_eq!(timeout_annotations(Some(&annotations("0"))), Ok(None));
        let read = timeout_annotations(Some(&annotations("5s")))
            .expect("valid")
            .expect("set");
        assert_eq!(read.idle, Some(Duration::from_secs(5)));
        let (field, _) = timeout_annotations(Some(&annotations("1.5s"))).expect_err("a fraction");
        assert_eq!(field, "metadata.annotations[timeout.linkerd.io/idle]");
    }
}
