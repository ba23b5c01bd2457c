//! Owns plots as SVG, written by hand: bars with their spread, and lines over time. Text only.

use std::fmt::Write;

use super::number;
use crate::stats::Spread;

/// Colours and fonts, for light and dark pages; part of each file, since a README shows it alone.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600}.b{fill:#8aa4c2}.own{fill:#2f7d4f}\
    .w{stroke:#222;stroke-width:1}.d{fill:#222;fill-opacity:.45}.g{stroke:#ccc;stroke-width:1}.l{fill:none;stroke-width:1.6}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.w{stroke:#ddd}.d{fill:#ddd}.g{stroke:#444}.b{fill:#5f7ea3}.own{fill:#4ca873}}";

/// One bar: its name, its value and all values it is the median of.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name beside it.
    pub name: String,
    /// Median and range.
    pub spread: Spread,
    /// Each repetition, as a dot.
    pub dots: Vec<f64>,
}

/// Bars under one heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The heading, with the unit.
    pub title: String,
    /// From the top.
    pub bars: Vec<Bar>,
}

/// Some values over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The heading, with the units.
    pub title: String,
    /// Name and points (x, y) of each.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Width of a plot.
const WIDTH: f64 = 460.0;
/// Where bars begin, right of their names, and the longest of them.
const LEFT: f64 = 130.0;
const LONGEST: f64 = 250.0;
/// Height of a bar with its gap.
const STEP: f64 = 24.0;
/// Height of the heading.
const HEAD: f64 = 26.0;
/// Height of the area of lines.
const AREA: f64 = 170.0;

/// A file with some plots of bars, two beside each other.
pub fn sheet(plots: &[Bars]) -> String {
    let mut rows = Vec::new();
    let mut top = 0.0;
    for pair in plots.chunks(2) {
        for (at, plot) in pair.iter().enumerate() {
            rows.push(format!(
                "<g transform=\"translate({},{top})\">{}</g>",
                WIDTH * at as f64,
                bars_inside(plot)
            ));
        }
        top += pair.iter().map(height).fold(0.0, f64::max);
    }
    file(WIDTH * plots.len().min(2) as f64, top, &rows.concat())
}

/// One plot of bars.
pub fn bars(plot: &Bars) -> String {
    file(WIDTH, height(plot), &bars_inside(plot))
}

/// One plot of lines.
pub fn lines(plot: &Lines) -> String {
    let legend = plot.lines.len() as f64 * 18.0;
    file(WIDTH, HEAD + AREA + 24.0 + legend, &lines_inside(plot))
}

fn file(width: f64, height: f64, inside: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\"><style>{STYLE}</style>{inside}</svg>\n"
    )
}

fn height(plot: &Bars) -> f64 {
    HEAD + STEP * plot.bars.len() as f64 + 12.0
}

fn bars_inside(plot: &Bars) -> String {
    let most = plot
        .bars
        .iter()
        .map(|bar| bar.spread.max)
        .fold(0.0, f64::max);
    let scale = if most > 0.0 { LONGEST / most } else { 0.0 };
    let mut text = heading(&plot.title);
    for (at, bar) in plot.bars.iter().enumerate() {
        let (top, class) = (
            HEAD + STEP * at as f64,
            if bar.name == "weft" { "own" } else { "b" },
        );
        let middle = top + 9.0;
        let x = |value: f64| LEFT + value.max(0.0) * scale;
        let Spread { median, min, max } = bar.spread;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\"/>\
             <line class=\"w\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>",
            LEFT - 6.0,
            top + 13.0,
            escape(&bar.name),
            x(median) - LEFT,
            x(min),
            x(max),
        );
        for value in &bar.dots {
            let _ = write!(
                text,
                "<circle class=\"d\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2.5\"/>",
                x(*value)
            );
        }
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(max) + 6.0,
            top + 13.0,
            number(median)
        );
    }
    text
}

fn lines_inside(plot: &Lines) -> String {
    let all = || plot.lines.iter().flat_map(|(_, points)| points.iter());
    let most_x = all().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let most_y = all().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let (left, width, bottom) = (48.0, WIDTH - 60.0, HEAD + AREA);
    let mut text = heading(&plot.title);
    for part in 0..=2 {
        let share = f64::from(part) / 2.0;
        let y = bottom - AREA * share;
        let _ = write!(
            text,
            "<line class=\"g\" x1=\"{left}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + width,
            left - 4.0,
            y + 4.0,
            number(most_y * share),
            left + width * share,
            bottom + 16.0,
            number(most_x * share),
        );
    }
    for (at, (name, points)) in plot.lines.iter().enumerate() {
        let hue = at * 360 / plot.lines.len().max(1);
        let point = |(x, y): &(f64, f64)| {
            format!(
                "{:.1},{:.1}",
                left + x / most_x * width,
                bottom - y / most_y * AREA
            )
        };
        let path: Vec<String> = points.iter().map(point).collect();
        let y = bottom + 36.0 + 18.0 * at as f64;
        let _ = write!(
            text,
            "<polyline class=\"l\" style=\"stroke:hsl({hue} 60% 45%)\" points=\"{}\"/>\
             <line class=\"l\" style=\"stroke:hsl({hue} 60% 45%)\" x1=\"{left}\" x2=\"{:.0}\" y1=\"{y:.0}\" y2=\"{y:.0}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            path.join(" "),
            left + 24.0,
            left + 30.0,
            y + 4.0,
            escape(name),
        );
    }
    text
}

fn heading(title: &str) -> String {
    format!(
        "<text class=\"t\" x=\"4\" y=\"16\">{}</text>",
        escape(title)
    )
}

/// Text between tags or in an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, median: f64, max: f64) -> Bar {
        Bar {
            name: name.to_owned(),
            spread: Spread {
                median,
                min: median,
                max,
            },
            dots: vec![median, max],
        }
    }

    #[test]
    fn the_longest_value_has_the_longest_bar() {
        let plot = Bars {
            title: "CPU < 1".to_owned(),
            bars: vec![bar("weft", 50.0, 100.0), bar("a&b", 100.0, 100.0)],
        };
        let text = bars(&plot);
        assert!(
            text.contains("CPU &lt; 1") && text.contains("a&amp;b"),
            "{text}"
        );
        assert!(
            text.contains("class=\"own\" x=\"130\" y=\"26.0\" width=\"125.0\""),
            "{text}"
        );
        assert!(
            text.contains("class=\"b\" x=\"130\" y=\"50.0\" width=\"250.0\""),
            "{text}"
        );
        assert_eq!(text.matches("<circle").count(), 4);
    }

    #[test]
    fn nothing_and_zero_can_be_drawn() {
        for bars in [vec![], vec![bar("x", 0.0, 0.0)]] {
            let text = sheet(&[Bars {
                title: String::new(),
                bars,
            }]);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        let text = lines(&Lines {
            title: String::new(),
            lines: vec![("x".to_owned(), vec![(0.0, 0.0)])],
        });
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn lines_begin_at_the_left_and_end_at_the_top() {
        let lines_ = vec![("x".to_owned(), vec![(0.0, 0.0), (2.0, 8.0)])];
        let text = lines(&Lines {
            title: "t".to_owned(),
            lines: lines_,
        });
        assert!(text.contains("points=\"48.0,196.0 448.0,26.0\""), "{text}");
    }
}
