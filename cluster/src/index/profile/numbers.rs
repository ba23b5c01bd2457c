//! Owns two formats of ServiceProfiles: durations as Go writes them, and quantities as Kubernetes does. Bounds of what they
//! mean are checked elsewhere.

use std::time::Duration;

/// Digits of a number; with them everything below fits its type.
const MAX_DIGITS: usize = 12;

/// A Go duration that is not negative: `300ms`, `1m30s`, `1.5h`, `0`.
///
/// # Errors
/// What is wrong, in a sentence.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as 300ms or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = rest.split_at(end.ok_or_else(bad)?);
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, next) = unit.split_at(end.unwrap_or(unit.len()));
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(bad()),
        };
        let (digits, fraction) = decimal(number).ok_or_else(bad)?;
        nanos += digits * unit / 10u128.pow(fraction);
        rest = next;
    }
    match u64::try_from(nanos) {
        Ok(nanos) if !text.is_empty() => Ok(Duration::from_nanos(nanos)),
        _ => Err(bad()),
    }
}

/// A Kubernetes quantity that is not negative, in thousandths, rounded up: `900m` is 900, `1` is 1000.
pub(super) fn thousandths(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (digits, fraction) = decimal(number)?;
    let scale: u128 = match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => 1_000_000_000,
        "k" => 1_000_000_000_000,
        _ => return None,
    };
    let billionths = (digits * scale).div_ceil(10u128.pow(fraction));
    u64::try_from(billionths.div_ceil(1_000_000)).ok()
}

/// The digits of a decimal number, and how many of them are behind the point.
fn decimal(text: &str) -> Option<(u128, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{fraction}");
    if digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, u32::try_from(fraction.len()).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_as_go_writes_them() {
        let millis = |text| duration(text).map(|d| d.as_millis());
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("300ms", 300),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("2m0.25s", 120_250),
            ("1500us", 1),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "1",
            "s",
            "-1s",
            "1d",
            "1s2",
            "1..5s",
            ".",
            "1 s",
            "9999999999999s",
            "é",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn quantities_in_thousandths() {
        for (text, expected) in [
            ("900m", 900),
            ("1", 1_000),
            ("0.5", 500),
            ("0", 0),
            ("1u", 1),
            ("2k", 2_000_000),
            ("1.0005", 1_001),
        ] {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        for bad in ["", "m", "-1", "1Ki", "1e3", "1.1.1", "99999999999999"] {
            assert_eq!(thousandths(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[0-9.]{0,14}[a-zµé]{0,3}[0-9.]{0,14}[a-z]{0,3}") {
            let _ = duration(&text);
            let _ = thousandths(&text);
        }
    }
}
