//! Owns the readers of annotation values in the forms Linkerd documents for them (contract 9.3): Go's booleans and durations,
//! quantities, port lists with names. It knows no annotation; whoever reads one adds its name to the reason.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_core::parse;

/// `strconv.ParseBool` of Go.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// `enabled` or `disabled`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "enabled" => Ok(true),
        "disabled" => Ok(false),
        _ => Err("expected enabled or disabled".to_owned()),
    }
}

/// A port that can be listened on.
pub(super) fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "expected a port from 1 to 65535".to_owned())
}

/// A duration as Go writes it.
pub(super) fn go_duration(text: &str) -> Result<Duration, String> {
    parse::go_duration(text)
        .map_err(|_| "expected a duration such as 1s, 300ms or 1m30s".to_owned())
}

/// In whole milliseconds, rounded up so that a short time does not become none.
pub(super) fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_nanos().div_ceil(1_000_000))
}

/// In whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> String {
    format!("{}s", time.as_nanos().div_ceil(1_000_000_000))
}

/// A duration of the values in the proxy's form (contract 1.1): as it is if the proxy understands it, else in milliseconds.
pub(super) fn proxy_duration(text: &str) -> Result<String, String> {
    match parse::duration(text) {
        Ok(_) => Ok(text.trim().to_owned()),
        Err(_) => go_duration(text).map(milliseconds),
    }
}

/// The amount of a Kubernetes quantity (`500m`, `1.5Gi`, `1e3`), which must not be negative.
pub(super) fn quantity(text: &str) -> Result<f64, String> {
    let wrong = || "expected a quantity such as 100m, 2 or 64Mi".to_owned();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let amount: f64 = number.parse().map_err(|_| wrong())?;
    let scale = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024f64,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E']).ok_or_else(wrong)?;
            let power: i32 = digits.parse().map_err(|_| wrong())?;
            if !(-18..=18).contains(&power) {
                return Err(wrong());
            }
            10f64.powi(power)
        }
    };
    Ok(amount * scale)
}

/// Ports of a pod by the names its containers give them.
pub(super) type NamedPorts = BTreeMap<String, u16>;

/// The valid items of a list of ports, ranges and names, in the form of contract 1.1, and what is wrong with the others (case D19).
/// Ranges stay ranges.
pub(super) fn ports(text: &str, named: &NamedPorts) -> (String, Vec<String>) {
    items(text, |item| match named.get(item) {
        Some(port) => Ok(port.to_string()),
        None => match parse::port_set(item) {
            // PROXY_INIT and the proxy take ports; 0 is none.
            Ok(set) if !set.contains(0) => Ok(set.to_string()),
            _ => Err(format!(
                "{item:?} is neither a port, a range such as 8080-8090, nor the name of a container's port"
            )),
        },
    })
}

/// The valid items of a list of networks, and what is wrong with the others.
pub(super) fn networks(text: &str) -> (String, Vec<String>) {
    items(text, |item| match parse::networks(item) {
        Ok(networks) if networks.len() == 1 => {
            Ok(networks.iter().map(ToString::to_string).collect())
        }
        _ => Err(format!("{item:?} is not a network such as 10.0.0.0/8")),
    })
}

fn items(text: &str, read: impl Fn(&str) -> Result<String, String>) -> (String, Vec<String>) {
    let (mut valid, mut faults) = (Vec::new(), Vec::new());
    let items = text.split(',').map(str::trim);
    for item in items.filter(|item| !item.is_empty()) {
        match read(item) {
            Ok(item) if valid.contains(&item) => {}
            Ok(item) => valid.push(item),
            Err(fault) => faults.push(fault),
        }
    }
    (valid.join(","), faults)
}

/// An image without its tag, or a tag: what the kubelet's parser takes, without going into every detail.
pub(super) fn image_part(text: &str) -> Result<String, String> {
    let printable = text.bytes().all(|b| b.is_ascii_graphic());
    if text.is_empty() || text.len() > 255 || !printable {
        return Err("expected the name of an image, without blanks".to_owned());
    }
    Ok(text.to_owned())
}

/// Whether Kubernetes takes it as the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && bytes.iter().all(inner) && ends(bytes.first()) && ends(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_of_go() {
        assert_eq!(boolean("True"), Ok(true));
        assert_eq!(boolean("f"), Ok(false));
        for text in ["", "yes", "enabled", "tRUE", " true"] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_round_up_to_the_unit() {
        assert_eq!(milliseconds(go_duration("1m30s").unwrap()), "90000ms");
        assert_eq!(milliseconds(go_duration("1.5us").unwrap()), "1ms");
        assert_eq!(seconds(go_duration("1500ms").unwrap()), "2s");
        assert_eq!(proxy_duration("5m").unwrap(), "5m");
        assert_eq!(proxy_duration("1m30s").unwrap(), "90000ms");
        assert_eq!(proxy_duration("1h0m0s").unwrap(), "3600000ms");
    }

    #[test]
    fn quantities() {
        for (text, amount) in [
            ("500m", 0.5),
            ("2", 2.0),
            ("0.1", 0.1),
            ("1e3", 1000.0),
            ("1Ki", 1024.0),
            ("0", 0.0),
        ] {
            assert_eq!(quantity(text), Ok(amount), "{text}");
        }
        for text in [
            "", "200mm", "-1", "+1", "1 Gi", "Mi", "1.2.3", "1e", "1e99", "inf", "1K",
        ] {
            assert!(quantity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn d19_port_lists() {
        let named = NamedPorts::from([("mysql".to_owned(), 3306)]);
        for (text, valid, faults) in [
            ("3306, 4444", "3306,4444", 0),
            ("1-65535", "1-65535", 0),
            ("25,,587", "25,587", 0),
            ("mysql,3306", "3306", 0),
            ("abc,80", "80", 1),
            ("5-3", "", 1),
            ("70000,0,80", "80", 2),
            ("", "", 0),
        ] {
            let (read, wrong) = ports(text, &named);
            assert_eq!((read.as_str(), wrong.len()), (valid, faults), "{text}");
        }
    }

    #[test]
    fn label_values() {
        assert!(is_label_value("") && is_label_value("a.b_C-9"));
        assert!(
            !is_label_value("-a") && !is_label_value("a/b") && !is_label_value(&"a".repeat(64))
        );
    }
}
