//! Authorization against a model that counts addresses as numbers and compares labels.

use proptest::prelude::*;

use super::*;

fn id(name: &str) -> Identity {
    Identity::parse(name).expect("a valid identity")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn network(text: &str, except: &[&str]) -> Network {
    let except = except.iter().map(|text| net(text)).collect();
    Network {
        net: net(text),
        except,
    }
}

fn permits(
    networks: Vec<Network>,
    authentication: Authentication,
    client: &str,
    tls: ClientTls<'_>,
) -> bool {
    let authorization = Authorization {
        networks,
        authentication,
        meta: (),
    };
    authorize(&[authorization], client.parse().expect("an address"), tls).is_some()
}

#[test]
fn networks_have_exceptions() {
    let networks = vec![network("10.0.0.0/8", &["10.1.0.0/16", "10.2.3.4/32"])];
    let at = |client| {
        permits(
            networks.clone(),
            Authentication::Unauthenticated,
            client,
            ClientTls::Plain,
        )
    };
    assert!(at("10.0.0.1") && at("10.2.3.5"));
    assert!(!at("10.1.255.255") && !at("10.2.3.4") && !at("11.0.0.0") && !at("::1"));
}

#[test]
fn without_networks_nobody_is_permitted() {
    assert!(!permits(
        vec![],
        Authentication::Unauthenticated,
        "10.0.0.1",
        ClientTls::Plain
    ));
}

#[test]
fn mapped_addresses_are_ipv4() {
    let at = |networks, client| {
        permits(
            vec![networks],
            Authentication::Unauthenticated,
            client,
            ClientTls::Plain,
        )
    };
    assert!(at(network("10.0.0.0/8", &[]), "::ffff:10.1.2.3"));
    assert!(!at(
        network("10.0.0.0/8", &["10.1.2.3/32"]),
        "::ffff:10.1.2.3"
    ));
    assert!(!at(network("::/0", &[]), "::ffff:10.1.2.3"));
    assert!(at(network("::ffff:10.0.0.0/104", &[]), "10.1.2.3"));
    assert!(!at(
        network("0.0.0.0/0", &["::ffff:10.0.0.0/104"]),
        "10.1.2.3"
    ));
    assert!(at(network("::ffff:0:0/96", &[]), "192.0.2.1"));
}

#[test]
fn authentication_asks_for_what_it_says() {
    let web = id("web.app.example");
    let all = || vec![Network::from(net("0.0.0.0/0"))];
    let named = Authentication::TlsAuthenticated {
        identities: BTreeSet::from([web.clone()]),
        suffixes: vec![],
    };
    let other = id("api.app.example");
    let cases = [
        (ClientTls::Plain, [true, false, false]),
        (ClientTls::Anonymous, [true, true, false]),
        (ClientTls::Identified(&other), [true, true, false]),
        (ClientTls::Identified(&web), [true, true, true]),
    ];
    for (tls, [any, any_tls, by_name]) in cases {
        assert_eq!(
            permits(all(), Authentication::Unauthenticated, "10.0.0.1", tls),
            any
        );
        assert_eq!(
            permits(all(), Authentication::TlsUnauthenticated, "10.0.0.1", tls),
            any_tls
        );
        assert_eq!(permits(all(), named.clone(), "10.0.0.1", tls), by_name);
    }
}

#[test]
fn suffixes_match_below_only() {
    let suffix = IdentitySuffix::parse("*.NS.example.").expect("a suffix");
    assert_eq!(Ok(suffix.clone()), IdentitySuffix::new(&["ns", "example"]));
    assert!(suffix.matches(&id("a.ns.example")) && suffix.matches(&id("b.a.ns.example")));
    assert!(!suffix.matches(&id("ns.example")) && !suffix.matches(&id("ans.example")));
    assert!(!suffix.matches(&id("spiffe://a.ns.example")));
    let any = IdentitySuffix::parse("*").expect("any");
    assert!(any.matches(&id("spiffe://a/b")) && any.matches(&id("a")));
    for text in ["", "ns.example", "*ns", "*.", "*.*", "**", "*.a..b"] {
        assert!(IdentitySuffix::parse(text).is_err(), "{text}");
    }
    assert!(IdentitySuffix::new(&[""]).is_err());
}

#[test]
fn the_first_match_is_reported() {
    let rule = |text: &str, meta| Authorization {
        networks: vec![network(text, &[])],
        authentication: Authentication::Unauthenticated,
        meta,
    };
    let rules = [
        rule("10.0.0.0/16", 1),
        rule("10.0.0.0/8", 2),
        rule("10.1.0.0/16", 3),
    ];
    let found = |client: &str| {
        authorize(
            &rules,
            client.parse().expect("an address"),
            ClientTls::Plain,
        )
        .map(|found| found.meta)
    };
    assert_eq!(found("10.0.0.1"), Some(1));
    assert_eq!(found("10.1.0.1"), Some(2));
    assert_eq!(found("11.0.0.1"), None);
}

/// A network of the last byte: `10.0.0.base/length`, with one exception.
type Block = ((u8, u8), (u8, u8));

fn block() -> impl Strategy<Value = Block> {
    ((any::<u8>(), 24u8..=32), (any::<u8>(), 25u8..=32))
}

fn in_block((base, length): (u8, u8), client: u8) -> bool {
    let shift = 32 - u32::from(length);
    u32::from(base) >> shift == u32::from(client) >> shift
}

fn labels() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(proptest::sample::select(vec!["a", "b", "ab"]), 1..4)
}

#[derive(Clone, Debug)]
enum Who {
    Anybody,
    AnyTls,
    Named {
        exact: Vec<Vec<&'static str>>,
        below: Vec<Vec<&'static str>>,
    },
}

fn who() -> impl Strategy<Value = Who> {
    let names = || proptest::collection::vec(labels(), 0..3);
    prop_oneof![
        Just(Who::Anybody),
        Just(Who::AnyTls),
        (names(), names()).prop_map(|(exact, below)| Who::Named { exact, below }),
    ]
}

fn authentication(who: &Who) -> Authentication {
    match who {
        Who::Anybody => Authentication::Unauthenticated,
        Who::AnyTls => Authentication::TlsUnauthenticated,
        Who::Named { exact, below } => Authentication::TlsAuthenticated {
            identities: exact.iter().map(|labels| id(&labels.join("."))).collect(),
            suffixes: below
                .iter()
                .map(|labels| IdentitySuffix::new(labels).expect("labels"))
                .collect(),
        },
    }
}

/// `client`: no TLS, TLS without a name, or the labels of its name.
fn model_permits(who: &Who, client: &Option<Option<Vec<&'static str>>>) -> bool {
    match (who, client) {
        (Who::Anybody, _) | (Who::AnyTls, Some(_)) => true,
        (Who::Named { exact, below }, Some(Some(name))) => {
            exact.contains(name)
                || below
                    .iter()
                    .any(|end| name.len() > end.len() && name.ends_with(end))
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(
        rules in proptest::collection::vec((proptest::collection::vec(block(), 0..3), who()), 0..5),
        address: u8, mapped: bool,
        client in proptest::option::of(proptest::option::of(labels())),
    ) {
        let authorizations: Vec<_> = rules.iter().enumerate().map(|(meta, (blocks, who))| Authorization {
            networks: blocks.iter().map(|((base, length), (except, except_length))| {
                network(&format!("10.0.0.{base}/{length}"), &[&format!("10.0.0.{except}/{except_length}")])
            }).collect(),
            authentication: authentication(who),
            meta,
        }).collect();
        let expected = rules.iter().position(|(blocks, who)| {
            let inside = |(net, except): &Block| in_block(*net, address) && !in_block(*except, address);
            blocks.iter().any(inside) && model_permits(who, &client)
        });

        let v4 = Ipv4Addr::new(10, 0, 0, address);
        let ip = if mapped { IpAddr::V6(v4.to_ipv6_mapped()) } else { IpAddr::V4(v4) };
        let name = client.clone().flatten().map(|labels| id(&labels.join(".")));
        let tls = match (&client, &name) {
            (None, _) => ClientTls::Plain,
            (Some(_), None) => ClientTls::Anonymous,
            (Some(_), Some(name)) => ClientTls::Identified(name),
        };
        let found = authorize(&authorizations, ip, tls).map(|found| found.meta);
        prop_assert_eq!(found, expected);
    }
}
