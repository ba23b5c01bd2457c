//! Owns what a route matches, checked with the rules of the data plane (`weft_core::route`) so that a proxy never gets a
//! match it must refuse; keeps the text, which is what goes over the wire.

use weft_core::route as core;

use crate::{
    index::notes::Notes,
    objects::route::{self, MatchKind, ValueMatch},
};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// This name.
    Exact(String),
    /// Names below these labels, the last label first.
    Suffix(Vec<String>),
}

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Equal.
    Exact(String),
    /// Whole segments.
    Prefix(String),
    /// The whole path.
    Regex(String),
}

/// A header or query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMatch {
    /// Its name.
    pub name: String,
    /// Its value, or an expression for all of it.
    pub value: String,
    /// Whether the value is an expression.
    pub regex: bool,
}

/// All of these must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMatch {
    /// The path.
    pub path: Option<PathMatch>,
    /// Headers.
    pub headers: Vec<TextMatch>,
    /// Query parameters.
    pub query: Vec<TextMatch>,
    /// The method.
    pub method: Option<String>,
}

/// A gRPC service and method and headers; all of these must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatch {
    /// Full name of the service.
    pub service: Option<String>,
    /// Name of the method.
    pub method: Option<String>,
    /// Headers.
    pub headers: Vec<TextMatch>,
}

pub(super) fn hosts(hostnames: &[String], notes: &mut Notes) -> Option<Vec<HostMatch>> {
    let mut hosts = Vec::with_capacity(hostnames.len());
    for (index, hostname) in hostnames.iter().enumerate() {
        match core::HostMatch::parse(hostname) {
            Ok(core::HostMatch::Exact(name)) => hosts.push(HostMatch::Exact(name.to_string())),
            Ok(core::HostMatch::Suffix(suffix)) => {
                let labels = suffix
                    .trim_start_matches('.')
                    .rsplit('.')
                    .map(str::to_owned);
                hosts.push(HostMatch::Suffix(labels.collect()));
            }
            Err(error) => return notes.refuse(&format!("spec.hostnames[{index}]"), error),
        }
    }
    Some(hosts)
}

pub(super) fn read(m: &route::RouteMatch, field: &str, notes: &mut Notes) -> Option<RouteMatch> {
    let path = match &m.path {
        None => None,
        Some(path) => Some(read_path(path, field, notes)?),
    };
    let method = m.method.clone();
    if let Some(text) = method
        .as_deref()
        .filter(|text| http::Method::from_bytes(text.as_bytes()).is_err())
    {
        return notes.refuse(
            &format!("{field}.method"),
            format!("{text:?} is not a method"),
        );
    }
    let headers = read_headers(&m.headers, field, notes)?;
    let query = read_texts(
        &m.query_params,
        &format!("{field}.queryParams"),
        notes,
        |name, value, regex| {
            let checked = if regex {
                core::QueryMatch::regex(name, value)
            } else {
                core::QueryMatch::exact(name, value)
            };
            checked.map(drop)
        },
    )?;
    Some(RouteMatch {
        path,
        headers,
        query,
        method,
    })
}

/// Proxies compare services and methods as texts only.
pub(super) fn read_grpc(m: &route::GrpcMatch, field: &str, notes: &mut Notes) -> Option<GrpcMatch> {
    let (mut service, mut method) = (None, None);
    if let Some(named) = &m.method {
        let field = format!("{field}.method");
        if named.kind.is_some_and(|kind| kind != MatchKind::Exact) {
            return notes.refuse(&format!("{field}.type"), "only Exact is supported");
        }
        (service, method) = (named.service.clone(), named.method.clone());
        let bad = |name: &&String| name.contains(|c: char| c == '/' || !c.is_ascii_graphic());
        if let Some(name) = service.iter().chain(&method).find(bad) {
            return notes.refuse(
                &field,
                format!("{name:?} is not a name of a service or method"),
            );
        }
    }
    Some(GrpcMatch {
        service: service.filter(|name| !name.is_empty()),
        method: method.filter(|name| !name.is_empty()),
        headers: read_headers(&m.headers, field, notes)?,
    })
}

fn read_headers(headers: &[ValueMatch], field: &str, notes: &mut Notes) -> Option<Vec<TextMatch>> {
    let field = format!("{field}.headers");
    read_texts(headers, &field, notes, |name, value, regex| {
        let checked = if regex {
            core::HeaderMatch::regex(name, value)
        } else {
            core::HeaderMatch::exact(name, value.as_bytes())
        };
        checked.map(drop)
    })
}

fn read_path(path: &ValueMatch, field: &str, notes: &mut Notes) -> Option<PathMatch> {
    let value = path.value.clone().unwrap_or_else(|| "/".to_owned());
    let (checked, read) = match path.kind.unwrap_or(MatchKind::PathPrefix) {
        MatchKind::Exact => (core::PathMatch::exact(&value), PathMatch::Exact(value)),
        MatchKind::PathPrefix => (core::PathMatch::prefix(&value), PathMatch::Prefix(value)),
        MatchKind::RegularExpression => (core::PathMatch::regex(&value), PathMatch::Regex(value)),
    };
    match checked {
        Ok(_) => Some(read),
        Err(error) => notes.refuse(&format!("{field}.path.value"), error),
    }
}

fn read_texts(
    matches: &[ValueMatch],
    field: &str,
    notes: &mut Notes,
    check: impl Fn(&str, &str, bool) -> Result<(), core::MatchError>,
) -> Option<Vec<TextMatch>> {
    let mut read = Vec::with_capacity(matches.len());
    for (index, m) in matches.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let regex = match m.kind.unwrap_or(MatchKind::Exact) {
            MatchKind::Exact => false,
            MatchKind::RegularExpression => true,
            MatchKind::PathPrefix => {
                return notes.refuse(&format!("{field}.type"), "PathPrefix is for paths only");
            }
        };
        let Some(name) = &m.name else {
            return notes.refuse(&format!("{field}.name"), "missing");
        };
        let value = m.value.clone().unwrap_or_default();
        if let Err(error) = check(name, &value, regex) {
            return notes.refuse(&field, error);
        }
        read.push(TextMatch {
            name: name.clone(),
            value,
            regex,
        });
    }
    Some(read)
}
