//! The text of the families that are older than OpenMetrics (contract 6.1), made from what prometheus-client writes.
//! It changes names of counters in comments and bucket bounds, nothing else.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use std::fmt::{Error, Write};

/// Writes the one family of `family` to `out`.
///
/// `# TYPE request counter` becomes `# TYPE request_total counter`, and `le="10.0"` becomes `le="10"`: a sum over
/// proxies of both
/// meshes must find equal labels.
pub(super) fn encode(out: &mut String, family: &Registry) -> Result<(), Error> {
    let mut text = String::new();
    encode_registry(&mut text, family)?;
    let counter = text
        .lines()
        .take_while(|line| line.starts_with('#'))
        .any(|line| line.starts_with("# TYPE ") && line.ends_with(" counter"));
    for line in text.lines() {
        match comment(line) {
            Some((keyword, name, rest)) if counter => {
                writeln!(out, "# {keyword} {name}_total {rest}")?
            }
            Some(_) => writeln!(out, "{line}")?,
            None => sample(out, line)?,
        }
    }
    Ok(())
}

fn comment(line: &str) -> Option<(&str, &str, &str)> {
    let (keyword, rest) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = rest.split_once(' ')?;
    Some((keyword, name, rest))
}

fn sample(out: &mut String, line: &str) -> Result<(), Error> {
    // prometheus-client writes `le` first, so nothing from outside can stand before it.
    const BOUND: &str = "_bucket{le=\"";
    let whole = line.split_once(BOUND).and_then(|(name, rest)| {
        let (bound, rest) = rest.split_once('"')?;
        Some((name, bound.strip_suffix(".0")?, rest))
    });
    match whole {
        Some((name, bound, rest)) if !name.contains('{') => {
            writeln!(out, "{name}{BOUND}{bound}\"{rest}")
        }
        _ => writeln!(out, "{line}"),
    }
}
