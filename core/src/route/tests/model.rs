//! The naive model of route selection: plain strings, every candidate ranked, the list sorted.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::{collection::vec, option, prelude::*, sample::select};

use crate::route::{
    HeaderMatch, HostMatch, PathMatch, QueryMatch, RequestMatch, RequestView, Rule,
};

const LABELS: [&str; 2] = ["a", "bb"];
const SEGMENTS: [&str; 2] = ["x", "xx"];
const NAMES: [&str; 2] = ["n", "m"];

#[derive(Clone, Debug)]
pub enum Path {
    Exact(Vec<&'static str>),
    Prefix(Vec<&'static str>),
    /// An expression that is one path with a `+` after it.
    Repeated(Vec<&'static str>),
}

#[derive(Clone, Debug)]
pub struct Match {
    path: Option<Path>,
    headers: Vec<&'static str>,
    query: Vec<&'static str>,
    method: Option<Method>,
}

#[derive(Clone, Debug)]
pub struct Route {
    /// Labels, and whether a wildcard stands before them.
    hosts: Vec<(Vec<&'static str>, bool)>,
    rules: Vec<Vec<Match>>,
}

#[derive(Clone, Debug)]
pub struct Request {
    host: Option<Vec<&'static str>>,
    host_text: Option<String>,
    segments: Vec<&'static str>,
    path: String,
    headers: Vec<&'static str>,
    query: Vec<&'static str>,
    query_text: Option<String>,
    method: Method,
}

fn host() -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(&LABELS[..]), 1..4)
}

fn segments() -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(&SEGMENTS[..]), 0..3)
}

fn names() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(&NAMES[..], 0..=2)
}

fn method() -> impl Strategy<Value = Method> {
    select(vec![Method::GET, Method::POST])
}

fn path() -> impl Strategy<Value = Path> {
    prop_oneof![
        segments().prop_map(Path::Exact),
        segments().prop_map(Path::Prefix),
        segments().prop_map(Path::Repeated),
    ]
}

pub fn routes() -> impl Strategy<Value = Vec<Route>> {
    let one = (option::of(path()), names(), names(), option::of(method())).prop_map(
        |(path, headers, query, method)| Match {
            path,
            headers,
            query,
            method,
        },
    );
    let rules = vec(vec(one, 0..3), 0..4);
    let route = (vec((host(), any::<bool>()), 0..3), rules);
    vec(
        route.prop_map(|(hosts, rules)| Route { hosts, rules }),
        0..4,
    )
}

pub fn request() -> impl Strategy<Value = Request> {
    let decoration = select(vec!["", ":80", ".", ".:8080"]);
    (
        option::of(host()),
        decoration,
        segments(),
        names(),
        names(),
        method(),
    )
        .prop_map(|(host, decoration, segments, headers, query, method)| {
            let pairs: Vec<_> = query.iter().map(|name| format!("{name}=1")).collect();
            Request {
                host_text: host
                    .as_ref()
                    .map(|labels| labels.join(".").to_uppercase() + decoration),
                host,
                path: slashed(&segments),
                segments,
                headers,
                query,
                query_text: (!pairs.is_empty()).then(|| pairs.join("&")),
                method,
            }
        })
}

fn slashed(segments: &[&str]) -> String {
    format!("/{}", segments.join("/"))
}

impl Request {
    pub fn headers(&self) -> HeaderMap {
        let one = HeaderValue::from_static("1");
        self.headers
            .iter()
            .map(|name| (HeaderName::from_static(name), one.clone()))
            .collect()
    }

    pub fn view<'a>(&'a self, headers: &'a HeaderMap) -> RequestView<'a> {
        RequestView {
            method: &self.method,
            host: self.host_text.as_deref(),
            path: &self.path,
            query: self.query_text.as_deref(),
            headers,
        }
    }
}

impl Route {
    /// The route under test; the payload is the index of the rule.
    pub fn build(&self) -> crate::route::Route<usize> {
        let host = |(labels, wildcard): &(Vec<&str>, bool)| {
            let name = labels.join(".");
            let built = if *wildcard {
                HostMatch::suffix(&name)
            } else {
                HostMatch::exact(&name)
            };
            built.expect("labels are valid")
        };
        let rules = self.rules.iter().enumerate();
        crate::route::Route {
            hosts: self.hosts.iter().map(host).collect(),
            rules: rules
                .map(|(policy, matches)| Rule {
                    matches: matches.iter().map(Match::build).collect(),
                    policy,
                })
                .collect(),
        }
    }
}

impl Match {
    fn build(&self) -> RequestMatch {
        let path = self.path.as_ref().map(|path| match path {
            Path::Exact(segments) => PathMatch::exact(&slashed(segments)),
            Path::Prefix(segments) => PathMatch::prefix(&slashed(segments)),
            Path::Repeated(segments) => PathMatch::regex(&format!("{}+", slashed(segments))),
        });
        let header = |name: &&str| HeaderMatch::exact(name, b"1").expect("a valid name");
        let query = |name: &&str| QueryMatch::exact(name, "1").expect("a valid name");
        RequestMatch {
            path: path.transpose().expect("paths are valid"),
            headers: self.headers.iter().map(header).collect(),
            query: self.query.iter().map(query).collect(),
            method: self.method.clone(),
        }
    }

    fn rank(&self, request: &Request) -> Option<(usize, usize, usize, bool)> {
        let path = match &self.path {
            None => 1,
            Some(Path::Exact(segments)) if *segments == request.segments => slashed(segments).len(),
            Some(Path::Prefix(segments)) if request.segments.starts_with(segments) => {
                slashed(segments).len()
            }
            Some(Path::Repeated(segments)) => {
                let (text, last) = (slashed(segments), segments.last().map_or('/', |_| 'x'));
                let more = request.path.strip_prefix(&text)?;
                more.chars()
                    .all(|c| c == last)
                    .then_some(request.path.len())?
            }
            Some(_) => return None,
        };
        let all = self
            .headers
            .iter()
            .all(|name| request.headers.contains(name))
            && self.query.iter().all(|name| request.query.contains(name))
            && self
                .method
                .as_ref()
                .is_none_or(|method| *method == request.method);
        all.then_some((
            path,
            self.headers.len(),
            self.query.len(),
            self.method.is_some(),
        ))
    }
}

/// Kind (0 none, 1 suffix, 2 exact) and length; `None` if no host matches.
fn host_rank(route: &Route, request: &Request) -> Option<(u8, usize)> {
    if route.hosts.is_empty() {
        return Some((0, 0));
    }
    let host = request.host.as_ref()?;
    let rank = |(labels, wildcard): &(Vec<&str>, bool)| match wildcard {
        true => (host.len() > labels.len() && host.ends_with(labels))
            .then(|| (1, labels.join(".").len())),
        false => (host == labels).then(|| (2, labels.join(".").len())),
    };
    route.hosts.iter().filter_map(rank).max()
}

/// Indices of the route and of the rule.
pub fn find(routes: &[Route], request: &Request) -> Option<(usize, usize)> {
    let mut candidates = Vec::new();
    for (route_index, route) in routes.iter().enumerate() {
        let Some(host) = host_rank(route, request) else {
            continue;
        };
        for (rule_index, rule) in route.rules.iter().enumerate() {
            if rule.is_empty() {
                candidates.push(((host, (1, 0, 0, false)), (route_index, rule_index)));
            }
            let ranks = rule.iter().filter_map(|m| m.rank(request));
            candidates.extend(ranks.map(|rank| ((host, rank), (route_index, rule_index))));
        }
    }
    // A stable sort by descending rank keeps the order of declaration among equals.
    candidates.sort_by(|(a, _), (b, _)| b.cmp(a));
    candidates.first().map(|(_, place)| *place)
}
