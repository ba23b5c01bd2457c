//! Owns writing results: the raw runs as JSON, a summary as Markdown, a page with plots. It measures nothing.

pub mod html;
pub mod markdown;
pub mod svg;
pub mod view;

use std::path::Path;

use crate::figures::Results;

/// Writes all files of a report into a folder, which is made.
///
/// # Errors
/// Those of the file system.
pub fn write(results: &Results, folder: &Path) -> anyhow::Result<()> {
    let files = [
        ("runs.json", serde_json::to_string_pretty(results)? + "\n"),
        ("summary.md", markdown::summary(results)),
        ("report.html", html::page(results)),
        ("plot.svg", html::overview(results)),
    ];
    crate::results::write(folder, &files)
}

/// A number with about three digits that matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => grouped(value),
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with a thin gap between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_matter() {
        let texts = [0.1234, 1.5, 12.34, 123.4, 1234.5, -1_234_567.0].map(number);
        assert_eq!(
            texts,
            ["0.12", "1.50", "12.3", "123", "1,234", "-1,234,567"]
        );
    }
}
