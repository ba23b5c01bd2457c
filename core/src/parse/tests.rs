//! The accepted and the refused forms of each primitive.

use proptest::prelude::*;

use super::*;

#[test]
fn durations() {
    let ok = [
        ("0", 0),
        ("0ms", 0),
        ("250ms", 250),
        (" 10s ", 10_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("365d", 31_536_000_000),
    ];
    for (text, millis) in ok {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    let refused = [
        "",
        "1",
        "s",
        "1.5s",
        "1m30s",
        "-1s",
        "+1s",
        "1 s",
        "1S",
        "1us",
        "1w",
        "99999999999999999999s",
        "99999999999999999d",
    ];
    for text in refused {
        let error = duration(text).expect_err(text).to_string();
        assert!(
            error.contains("10s") && error.contains(&format!("{text:?}")),
            "{error}"
        );
    }
}

#[test]
fn durations_of_go() {
    for (text, micros) in [
        ("24h0m0s", 86_400_000_000),
        ("1m30s", 90_000_000),
        ("1.5h", 5_400_000_000),
        ("300ms", 300_000),
        ("1.5ms2µs3us", 1_505),
        ("0", 0),
        ("0s", 0),
    ] {
        assert_eq!(
            go_duration(text),
            Ok(Duration::from_micros(micros)),
            "{text}"
        );
    }
    for text in [
        "",
        "h",
        "5",
        "5d",
        "-5s",
        "1..5s",
        "1s 2",
        "5 s",
        "1s0",
        "1s0x",
        ".s",
        " 1s",
        "99999999999999999999h",
    ] {
        let error = go_duration(text).expect_err(text).to_string();
        assert!(error.contains("1m30s"), "{error}");
    }
}

#[test]
fn booleans_and_numbers() {
    assert_eq!(boolean("true"), Ok(true));
    assert_eq!(boolean("false"), Ok(false));
    for text in ["True", "1", "yes", "", " true"] {
        assert!(boolean(text).is_err(), "{text}");
    }
    assert_eq!(number::<u32>("100000"), Ok(100_000));
    assert_eq!(number::<f64>("0.1"), Ok(0.1));
    assert_eq!(number::<i8>("-3"), Ok(-3));
    for text in ["", "-1", "+1", "0x10", "1.5", "4294967296", "1_000", " 1"] {
        assert!(number::<u32>(text).is_err(), "{text}");
    }
    for text in ["inf", "NaN", "1e3", "-inf", "."] {
        assert!(number::<f64>(text).is_err(), "{text}");
    }
}

#[test]
fn addresses_and_networks() {
    let ips = ip_set("10.0.0.1, ::1,,10.0.0.1").expect("addresses");
    assert_eq!(ips.len(), 2);
    assert!(ip_set("10.0.0.0/8").is_err());
    let nets = networks("10.1.2.3/8,fd00::/8").expect("networks");
    assert_eq!(
        nets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.0/8", "fd00::/8"]
    );
    assert!(networks("10.0.0.1").is_err());
    assert!(networks("10.0.0.0/33").is_err());
}

#[test]
fn one_or_two_socket_addresses() {
    assert_eq!(
        socket_addrs("127.0.0.1:4140").map(|addrs| addrs.len()),
        Ok(1)
    );
    assert_eq!(
        socket_addrs("127.0.0.1:4140,[::1]:4140").map(|addrs| addrs.len()),
        Ok(2)
    );
    assert!(matches!(
        socket_addrs(""),
        Err(ParseError::Count { found: 0, .. })
    ));
    assert!(matches!(
        socket_addrs("[::1]:1,[::1]:2,[::1]:3"),
        Err(ParseError::Count { found: 3, .. })
    ));
    assert!(socket_addrs("localhost:4140").is_err());
}

#[test]
fn suffixes_match_whole_labels() {
    let suffixes = dns_suffixes("SVC.cluster.local., example.com").expect("suffixes");
    let [svc, example] = suffixes.as_slice() else {
        unreachable!("two were given");
    };
    assert!(svc.matches("web.app.svc.cluster.local"));
    assert!(svc.matches("WEB.app.svc.Cluster.local."));
    assert!(svc.matches("svc.cluster.local"));
    assert!(!svc.matches("web.mysvc.cluster.local"));
    assert!(!svc.matches("cluster.local"));
    assert!(!example.matches("example.com.evil"));
    assert_eq!(svc.to_string(), "svc.cluster.local.");
    let root = &dns_suffixes(".").expect("the root")[0];
    assert!(root.matches("anything") && root.matches(""));
    assert_eq!(root.to_string(), ".");
    for text in ["..", "*.a", "a b", ".a"] {
        assert!(dns_suffixes(text).is_err(), "{text}");
    }
}

#[test]
fn addrs_are_sockets_or_names() {
    let ok = [
        ("127.0.0.1:80", true),
        ("127.9.9.9:80", true),
        ("[::1]:80", true),
        ("[::ffff:127.0.0.1]:80", true),
        ("localhost:8086", true),
        ("Localhost.:8086", true),
        ("10.0.0.1:80", false),
        ("localhost.evil:80", false),
        (
            "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
            false,
        ),
    ];
    for (text, loopback) in ok {
        let addr = addr(text).expect(text);
        assert_eq!(addr.is_loopback(), loopback, "{text}");
        assert!(addr.to_string().eq_ignore_ascii_case(text));
    }
    for text in [
        "",
        "a",
        "a:",
        ":80",
        "a:65536",
        "10.0.0:80",
        "10.0.0.256:80",
        "a b:80",
        "::1:80",
        "http://a:80",
        "a:+1",
    ] {
        assert!(addr(text).is_err(), "{text}");
    }
}

#[test]
fn errors_show_only_the_start_of_what_was_found() {
    let error = boolean(&"ä".repeat(1000))
        .expect_err("no boolean")
        .to_string();
    assert!(error.chars().count() < 150, "{error}");
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC{0,30}") {
        let _ = (duration(&text), boolean(&text), number::<u16>(&text), number::<f64>(&text));
        let _ = (port_set(&text), ip_set(&text), networks(&text), dns_suffixes(&text), addr(&text), socket_addrs(&text));
    }

    #[test]
    fn addrs_survive_their_text(text in "[a-c.:0-9\\[\\]]{1,16}") {
        if let Ok(parsed) = addr(&text) {
            prop_assert_eq!(addr(&parsed.to_string()), Ok(parsed));
        }
    }

    #[test]
    fn whole_units_are_exact(amount in 0u64..1_000_000) {
        prop_assert_eq!(duration(&format!("{amount}s")), Ok(Duration::from_secs(amount)));
        prop_assert_eq!(duration(&format!("{amount}d")), Ok(Duration::from_secs(amount * 86_400)));
    }
}
