//! Owns the Gateway API's format of durations (GEP-2257); annotations have another one.

use std::time::Duration;

/// Reads a duration such as `1h30m`: `([0-9]{1,5}(h|m|s|ms)){1,4}`, GEP-2257. `None` for anything else.
pub fn parse(text: &str) -> Option<Duration> {
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
        let millis = |text| parse(text).map(|d| d.as_millis());
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
}
