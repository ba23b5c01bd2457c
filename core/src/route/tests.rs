//! Route selection: the rules of contract 3.2 one by one, then against a model that ranks every candidate.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

mod model;

fn view<'a>(
    method: &'a Method,
    host: Option<&'a str>,
    target: &'a str,
    headers: &'a HeaderMap,
) -> RequestView<'a> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    RequestView {
        method,
        host,
        path,
        query,
        headers,
    }
}

fn route(hosts: &[&str], rules: Vec<RequestMatch>) -> Route<usize> {
    Route {
        hosts: hosts
            .iter()
            .map(|host| HostMatch::parse(host).expect("a host"))
            .collect(),
        rules: rules
            .into_iter()
            .enumerate()
            .map(|(policy, m)| Rule {
                matches: vec![m],
                policy,
            })
            .collect(),
    }
}

fn path(path: Result<PathMatch, MatchError>) -> RequestMatch {
    RequestMatch {
        path: Some(path.expect("a path")),
        ..Default::default()
    }
}

/// Route and rule for a GET without headers.
fn selected(routes: &[Route<usize>], host: Option<&str>, target: &str) -> Option<(usize, usize)> {
    let headers = HeaderMap::new();
    find(routes, &view(&Method::GET, host, target, &headers))
        .map(|(index, rule)| (index, rule.policy))
}

#[test]
fn hosts_ignore_case_port_and_trailing_dot() {
    // Case H17.
    let routes = [route(
        &["example.com", "*.Foo.io"],
        vec![RequestMatch::default()],
    )];
    for host in [
        "EXAMPLE.com",
        "example.com:8080",
        "example.com.",
        "example.com.:80",
        "u:p@example.com",
        "A.foo.IO",
        "a.b.foo.io:1",
    ] {
        assert_eq!(selected(&routes, Some(host), "/"), Some((0, 0)), "{host}");
    }
    for host in [
        "foo.io",
        ".foo.io",
        "xfoo.io",
        "a.example.com",
        "example.com:x",
        "",
        "[::1]:80",
        "10.0.0.1",
    ] {
        assert_eq!(selected(&routes, Some(host), "/"), None, "{host}");
    }
    assert_eq!(selected(&routes, None, "/"), None);
}

#[test]
fn more_specific_hosts_win_over_longer_paths() {
    let root = || vec![path(PathMatch::prefix("/"))];
    let routes = [
        route(&[], vec![path(PathMatch::exact("/a/long/path"))]),
        route(&["*.example.com"], root()),
        route(&["*.b.example.com"], root()),
        route(&["a.b.example.com"], root()),
    ];
    let at = |host| selected(&routes, host, "/a/long/path").map(|(index, _)| index);
    assert_eq!(at(Some("a.b.example.com")), Some(3));
    assert_eq!(at(Some("x.b.example.com")), Some(2));
    assert_eq!(at(Some("x.example.com")), Some(1));
    assert_eq!(at(Some("other")), Some(0));
    assert_eq!(at(None), Some(0));
}

#[test]
fn of_payloads_by_host_the_most_specific_is_taken() {
    let hosts = |list: &[&str]| -> Vec<HostMatch> {
        list.iter()
            .map(|host| HostMatch::parse(host).expect("a host"))
            .collect()
    };
    let routes = [
        (hosts(&["*.example"]), 0),
        (hosts(&["*.a.example", "b.example"]), 1),
        (hosts(&["x.a.example"]), 2),
        (hosts(&["b.example"]), 3),
    ];
    for (host, expected) in [
        ("c.example", Some(0)),
        ("y.a.example", Some(1)),
        ("X.A.example", Some(2)),
        ("b.example", Some(1)),
        ("example", None),
        ("other.test", None),
    ] {
        assert_eq!(find_by_host(&routes, host).copied(), expected, "{host}");
    }
    let any = [(Vec::new(), 7)];
    assert_eq!(find_by_host(&any, "whatever.test"), Some(&7));
}

#[test]
fn a_host_without_a_matching_rule_leaves_the_request_to_others() {
    let routes = [
        route(&["a.example"], vec![path(PathMatch::prefix("/api"))]),
        route(&[], vec![RequestMatch::default()]),
    ];
    assert_eq!(selected(&routes, Some("a.example"), "/api/x"), Some((0, 0)));
    assert_eq!(selected(&routes, Some("a.example"), "/web"), Some((1, 0)));
}

#[test]
fn prefixes_match_whole_segments() {
    let rule = |prefix| [route(&[], vec![path(PathMatch::prefix(prefix))])];
    for prefix in ["/foo", "/foo/", "/foo//"] {
        for target in ["/foo", "/foo/", "/foo/bar", "/foo?q"] {
            assert!(
                selected(&rule(prefix), None, target).is_some(),
                "{prefix} {target}"
            );
        }
        for target in ["/", "/foobar", "/fo", "/Foo", "", "*"] {
            assert!(
                selected(&rule(prefix), None, target).is_none(),
                "{prefix} {target}"
            );
        }
    }
    for target in ["/", "/foo", "*", ""] {
        assert!(selected(&rule("/"), None, target).is_some(), "{target}");
        assert!(selected(&rule(""), None, target).is_some(), "{target}");
    }
}

#[test]
fn paths_rank_by_length_and_not_by_kind() {
    let routes = [route(
        &[],
        vec![
            path(PathMatch::prefix("/foo/")),
            path(PathMatch::exact("/foo")),
            path(PathMatch::regex("/foo(/a)?")),
            path(PathMatch::prefix("/")),
            RequestMatch::default(),
        ],
    )];
    let at = |target| selected(&routes, None, target);
    assert_eq!(
        at("/foo"),
        Some((0, 0)),
        "three of length 4, so the first stays"
    );
    assert_eq!(
        at("/foo/a"),
        Some((0, 2)),
        "an expression counts with what it matched"
    );
    assert_eq!(at("/foo/b"), Some((0, 0)));
    assert_eq!(
        at("/x"),
        Some((0, 3)),
        "no path is the prefix /, so the first stays"
    );
}

#[test]
fn headers_then_query_then_method_break_ties() {
    let header = |name| HeaderMatch::exact(name, b"1").expect("a header");
    let query = |name| QueryMatch::exact(name, "1").expect("a parameter");
    let rules = vec![
        RequestMatch {
            method: Some(Method::GET),
            ..Default::default()
        },
        RequestMatch {
            query: vec![query("p"), query("q")],
            ..Default::default()
        },
        RequestMatch {
            query: vec![query("p")],
            method: Some(Method::GET),
            ..Default::default()
        },
        RequestMatch {
            headers: vec![header("a")],
            ..Default::default()
        },
        RequestMatch {
            headers: vec![header("a"), header("b")],
            ..Default::default()
        },
    ];
    let routes = [route(&[], rules)];
    let mut headers = HeaderMap::new();
    let at = |headers: &HeaderMap, target| {
        find(&routes, &view(&Method::GET, None, target, headers)).map(|(_, rule)| rule.policy)
    };
    assert_eq!(at(&headers, "/"), Some(0));
    assert_eq!(at(&headers, "/?p=1"), Some(2));
    assert_eq!(at(&headers, "/?q=1&p=1"), Some(1));
    headers.insert("a", HeaderValue::from_static("1"));
    assert_eq!(at(&headers, "/?q=1&p=1"), Some(3));
    headers.insert("b", HeaderValue::from_static("1"));
    assert_eq!(at(&headers, "/"), Some(4));
}

#[test]
fn a_rule_without_matches_takes_every_request() {
    let routes = [Route {
        hosts: vec![],
        rules: vec![Rule {
            matches: vec![],
            policy: 7,
        }],
    }];
    let headers = HeaderMap::new();
    for (method, target) in [
        (Method::OPTIONS, "*"),
        (Method::CONNECT, ""),
        (Method::GET, "/a?b"),
    ] {
        let request = view(&method, None, target, &headers);
        assert_eq!(
            find(&routes, &request).map(|(_, rule)| rule.policy),
            Some(7)
        );
    }
    assert!(find::<usize>(&[], &view(&Method::GET, None, "/", &headers)).is_none());
}

#[test]
fn headers_match_any_of_their_values() {
    let mut headers = HeaderMap::new();
    headers.append("x-user", HeaderValue::from_static("alice"));
    headers.append(
        "x-user",
        HeaderValue::from_bytes(b"b\xffb").expect("obs-text is allowed"),
    );
    let exact = |value: &[u8]| {
        HeaderMatch::exact("X-User", value)
            .expect("a header")
            .matches(&headers)
    };
    let regex = |pattern| {
        HeaderMatch::regex("x-user", pattern)
            .expect("a header")
            .matches(&headers)
    };
    assert!(exact(b"alice") && exact(b"b\xffb") && !exact(b"Alice") && !exact(b""));
    assert!(regex("a.*e") && regex("alice|x") && !regex("lic") && !regex(""));
    assert!(regex("(?-u:b.b)"));
    assert!(matches!(
        HeaderMatch::exact("a b", b""),
        Err(MatchError::HeaderName(_))
    ));
}

#[test]
fn query_parameters_are_decoded() {
    let routes = |m: QueryMatch| {
        [route(
            &[],
            vec![RequestMatch {
                query: vec![m],
                ..Default::default()
            }],
        )]
    };
    let exact = |name, value| routes(QueryMatch::exact(name, value).expect("a parameter"));
    let regex = |name, value| routes(QueryMatch::regex(name, value).expect("a parameter"));
    let hit = |routes: &[Route<usize>], target| selected(routes, None, target).is_some();
    assert!(hit(&exact("a b", "c&d"), "/?x&a+b=c%26d"));
    assert!(
        hit(&exact("a", ""), "/?a") && hit(&exact("a", ""), "/?a=") && !hit(&exact("a", ""), "/?b")
    );
    assert!(hit(&exact("a", "2"), "/?a=1&a=2"));
    assert!(hit(&exact("a", "%zz%"), "/?a=%zz%") && hit(&exact("a", "b=c"), "/?a=b=c"));
    assert!(hit(&regex("a", "é+"), "/?a=%C3%A9%c3%a9") && hit(&regex("a", "[0-9]+"), "/?a=12"));
    assert!(!hit(&regex("a", "[0-9]"), "/?a=12") && !hit(&exact("a", "1"), "/"));
    assert_eq!(QueryMatch::exact("", "x"), Err(MatchError::QueryName));
}

#[test]
fn expressions_match_as_a_whole_and_are_bounded() {
    let pattern = Pattern::new("a|ab").expect("an expression");
    assert!(
        pattern.matches(b"ab")
            && pattern.matches(b"a")
            && !pattern.matches(b"abc")
            && !pattern.matches(b"xa")
    );
    assert!(!Pattern::new("a$").expect("an expression").matches(b"a\n"));
    assert!(
        !Pattern::new("(?m)^a$")
            .expect("an expression")
            .matches(b"a\nb")
    );
    assert!(Pattern::new(r"[\w-]{1,63}(\.[\w-]{1,63})*").is_ok());
    for refused in ["(", "a)|(b", "(a", r"\w{1000}{1000}", "(?x)a # b"] {
        let error = Pattern::new(refused);
        assert!(matches!(error, Err(MatchError::Regex { .. })), "{refused}");
    }
}

#[test]
fn invalid_matches_name_the_fault() {
    for host in ["10.0.0.1", "::1"] {
        assert!(
            matches!(HostMatch::exact(host), Err(MatchError::HostAddress(_))),
            "{host}"
        );
    }
    for host in ["", "*", "a.*.b", "a:80", "a b", "a..b"] {
        assert!(
            matches!(HostMatch::parse(host), Err(MatchError::Host(_))),
            "{host}"
        );
    }
    let labels = HostMatch::suffix_of_reverse_labels(&["com", "example"]);
    assert_eq!(labels, HostMatch::parse("*.example.com"));
    assert!(HostMatch::suffix_of_reverse_labels::<&str>(&[]).is_err());
    assert_eq!(PathMatch::exact("foo"), Err(MatchError::Path("foo".into())));
    assert_eq!(
        PathMatch::prefix("foo"),
        Err(MatchError::Path("foo".into()))
    );
}

fn call(service: Option<&str>, method: Option<&str>) -> GrpcMatch {
    GrpcMatch {
        service: service.map(Into::into),
        method: method.map(Into::into),
        headers: vec![],
    }
}

#[test]
fn grpc_calls_rank_by_service_then_method_then_headers() {
    let with_header = GrpcMatch {
        headers: vec![HeaderMatch::exact("a", b"1").expect("a header")],
        ..call(None, None)
    };
    let matches = [
        with_header,
        call(None, Some("LongMethodName")),
        call(Some("p.S"), None),
        call(Some("p.S"), Some("M")),
    ];
    let rules = matches.into_iter().enumerate();
    let rules = rules
        .map(|(policy, m)| Rule {
            matches: vec![m],
            policy,
        })
        .collect();
    let routes = [Route {
        hosts: vec![],
        rules,
    }];
    let mut headers = HeaderMap::new();
    headers.insert("a", HeaderValue::from_static("1"));
    let at = |method: Method, path| {
        find_grpc(&routes, &view(&method, Some("any"), path, &headers)).map(|(_, rule)| rule.policy)
    };
    assert_eq!(at(Method::POST, "/p.S/M"), Some(3));
    assert_eq!(at(Method::POST, "/p.S/LongMethodName"), Some(2));
    assert_eq!(at(Method::POST, "/p.T/LongMethodName"), Some(1));
    assert_eq!(at(Method::POST, "/p.s/m"), Some(0));
    assert_eq!(at(Method::GET, "/p.S/M"), None);
    assert_eq!(at(Method::POST, "/p.S"), None);
    assert_eq!(at(Method::POST, "*"), None);
}

#[test]
fn grpc_rule_without_matches_takes_every_call() {
    let hosts = vec![HostMatch::exact("a.example").expect("a host")];
    let routes = [Route {
        hosts,
        rules: vec![GrpcRule {
            matches: vec![],
            policy: (),
        }],
    }];
    let headers = HeaderMap::new();
    let at =
        |method, host| find_grpc(&routes, &view(method, Some(host), "/s/m", &headers)).is_some();
    assert!(at(&Method::POST, "A.example:1"));
    assert!(!at(&Method::POST, "b.example"));
    assert!(!at(&Method::GET, "a.example"));
}

proptest! {
    #[test]
    fn agrees_with_the_model(routes in model::routes(), request in model::request()) {
        let built: Vec<_> = routes.iter().map(model::Route::build).collect();
        let headers = request.headers();
        let found = find(&built, &request.view(&headers)).map(|(index, rule)| (index, rule.policy));
        prop_assert_eq!(found, model::find(&routes, &request));
    }

    #[test]
    fn any_request_is_answered(host in "\\PC{0,20}", path in "\\PC{0,20}", query in "\\PC{0,20}", routes in model::routes()) {
        let built: Vec<_> = routes.iter().map(model::Route::build).collect();
        let headers = HeaderMap::new();
        let request = RequestView { method: &Method::GET, host: Some(&host), path: &path, query: Some(&query), headers: &headers };
        let _ = find(&built, &request);
    }
}
