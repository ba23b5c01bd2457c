//! Owns the page a person looks at: plots and tables of each workload. It needs nothing from elsewhere.

use super::markdown::LEGEND;
use super::svg::{self, Bar, Bars, escape};
use super::view::{self, Column, Table};
use crate::figures::{Metric, Results};
use crate::workload::Workload;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
    table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}td,th{padding:.2rem .6rem;border-bottom:1px solid #ccc;\
    text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}svg{max-width:100%}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td,th{border-color:#444}}";

/// Figures that are drawn, if a workload has them.
const DRAWN: [Metric; 6] = [
    Metric::Rate,
    Metric::Cpu,
    Metric::P50,
    Metric::P99,
    Metric::Loaded,
    Metric::PerConnection,
];

/// The page.
pub fn page(results: &Results) -> String {
    let mut parts = vec![format!("<h1>Measurements</h1><p>{}</p>", escape(LEGEND))];
    for workload in results.workloads() {
        let ratios = view::ratios(results, workload);
        parts.push(format!(
            "<h2>{workload}: {}</h2>{}{}<p>{}</p>",
            escape(workload.description()),
            svg::sheet(&plots(results, workload, &DRAWN)),
            table(&view::table(results, workload)),
            escape(&ratios),
        ));
    }
    let facts = Table {
        headings: vec!["The machine and the programs".to_owned(), String::new()],
        rows: results
            .facts
            .iter()
            .map(|(name, value)| vec![name.clone(), value.clone()])
            .collect(),
    };
    parts.push(table(&facts));
    parts.extend(
        results
            .left_out
            .iter()
            .map(|note| format!("<p>Left out: {}.</p>", escape(note))),
    );
    document("Measurements", &parts.concat())
}

/// The most telling plots of a run, for a README.
pub fn overview(results: &Results) -> String {
    let both = [Metric::Rate, Metric::Cpu];
    let workloads = results
        .workloads()
        .into_iter()
        .filter(|workload| !workload.is_rated());
    svg::sheet(
        &workloads
            .take(3)
            .flat_map(|workload| plots(results, workload, &both))
            .collect::<Vec<_>>(),
    )
}

/// A whole page around some elements.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style><body>{body}</body></html>\n",
        escape(title)
    )
}

/// A table as HTML.
pub fn table(table: &Table) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells: Vec<String> = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)))
            .collect();
        format!("<tr>{}</tr>", cells.concat())
    };
    let rows: Vec<String> = table.rows.iter().map(|cells| row(cells, "td")).collect();
    format!(
        "<table>{}{}</table>",
        row(&table.headings, "th"),
        rows.concat()
    )
}

fn plots(results: &Results, workload: Workload, metrics: &[Metric]) -> Vec<Bars> {
    // A rate that was set is no figure.
    let telling =
        |column: &Column| !(column.added || column.metric == Metric::Rate && workload.is_rated());
    let columns = view::columns(workload)
        .into_iter()
        .filter(|column| telling(column) && metrics.contains(&column.metric));
    columns
        .map(|column| plot(results, workload, &column))
        .filter(|plot| !plot.bars.is_empty())
        .collect()
}

fn plot(results: &Results, workload: Workload, column: &Column) -> Bars {
    let bar = |peer: &str| {
        let values = results.values(peer, workload, column.metric);
        Some(Bar {
            name: peer.to_owned(),
            spread: column.spread(results, peer, workload)?,
            dots: values
                .into_iter()
                .map(|(_, value)| value * column.factor)
                .collect(),
        })
    };
    // A rate without a proxy would make the others short, and is in the table.
    let drawn = |peer: &&str| !(column.metric == Metric::Rate && *peer == "none");
    let (heading, unit) = (column.heading, workload.unit().name());
    let title = match column.metric {
        Metric::Cpu => format!("{workload}: {heading} a {unit}, pair"),
        Metric::Rate if heading == "per s" => format!("{workload}: {unit}s a second"),
        _ => format!("{workload}: {heading}"),
    };
    Bars {
        title,
        bars: results
            .peers()
            .into_iter()
            .filter(drawn)
            .filter_map(bar)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Load, Run};

    #[test]
    fn the_page_stands_alone() {
        let run = |peer: &str| Run {
            peer: peer.to_owned(),
            workload: Workload::Http2,
            repetition: 0,
            load: Load {
                seconds: 1.0,
                units: 1234.0,
                ..Load::default()
            },
            proxies: None,
        };
        let results = Results {
            runs: vec![run("weft"), run("none")],
            ..Results::default()
        };
        let text = page(&results);
        assert!(text.starts_with("<!doctype html>") && text.contains("1,234"));
        assert_eq!(text.matches("<rect").count(), 1, "no bar for none");
        let elsewhere = text.matches("http").count() - text.matches("http2").count();
        assert_eq!(elsewhere, text.matches("www.w3.org").count());
        assert!(overview(&results).starts_with("<svg"));
    }
}
