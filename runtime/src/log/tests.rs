//! Tests of logging, each with a subscriber of its own.

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

fn logging(directives: &str, format: Format, body: impl FnOnce(&LogHandle, &Lines)) {
    let lines = Lines::default();
    let out = lines.clone();
    let (subscriber, handle) = build(directives, format, move || out.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || body(&handle, &lines));
}

#[test]
fn the_default_of_the_contract_shows_our_own_information() {
    logging(
        "warn,linkerd=info,hickory=error",
        Format::Plain,
        |_, lines| {
            tracing::info!(target: "weft_proxy::inbound", port = 80, "ours");
            tracing::debug!(target: "weft_proxy::inbound", "too much");
            tracing::info!(target: "hyper", "foreign");
            tracing::warn!(target: "hyper", "foreign warning");
            let text = lines.take();
            assert_eq!(text.lines().count(), 2, "{text}");
            let ours = text.lines().next().unwrap();
            assert!(ours.contains("INFO ThreadId("), "{ours}");
            assert!(
                ours.ends_with("weft_proxy::inbound: ours port=80"),
                "{ours}"
            );
            let uptime: f64 = ours
                .trim_start()
                .split('s')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert!(uptime < 1e6, "seconds since the start");
        },
    );
}

#[test]
fn json_has_the_time_and_the_spans() {
    logging("weft=info", Format::Json, |_, lines| {
        let span = tracing::info_span!(target: "weft_proxy", "inbound", client = "10.0.0.1");
        span.in_scope(|| tracing::info!(target: "weft_proxy", "hello"));
        let line: serde_json::Value = serde_json::from_str(&lines.take()).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["target"], "weft_proxy");
        assert_eq!(line["fields"]["message"], "hello");
        assert_eq!(line["spans"][0]["name"], "inbound");
        assert_eq!(line["spans"][0]["client"], "10.0.0.1");
        let time = line["timestamp"].as_str().unwrap();
        assert!(
            time.len() >= 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T',
            "{time}"
        );
    });
}

#[test]
fn the_filter_changes_while_running_and_a_bad_one_changes_nothing() {
    logging("off", Format::Plain, |handle, lines| {
        tracing::error!(target: "weft_x", "unseen");
        assert_eq!(lines.take(), "");
        handle.set("weft_x=debug").unwrap();
        tracing::debug!(target: "weft_x", "seen");
        assert!(lines.take().contains("seen"));
        assert!(handle.set("weft_x=loud").is_err());
        assert_eq!(handle.current(), "weft_x=debug");
        tracing::debug!(target: "weft_x", "still seen");
        assert!(lines.take().contains("still seen"));
    });
}

#[test]
fn events_that_carry_headers_can_be_switched_off() {
    let directives = "info,[{headers}]=off,[{request}]=off";
    logging(directives, Format::Plain, |_, lines| {
        tracing::info!(headers = "secret", "event");
        tracing::error!(request = "secret", "event");
        tracing::info!("outside");
        let text = lines.take();
        assert!(
            text.contains("outside") && !text.contains("secret"),
            "{text}"
        );
    });
}

#[test]
fn directives_are_checked_and_bounded() {
    for good in [
        "",
        "off",
        "info",
        "warn,linkerd=info,hickory=error,[{headers}]=off",
        "a[b{c=d}]=trace",
    ] {
        assert!(check(good).is_ok(), "{good}");
    }
    for bad in ["weft=loud", "a=b=c", "[{=info"] {
        let error = check(bad).unwrap_err().to_string();
        assert!(error.contains(bad) && error.contains("LEVEL"), "{error}");
    }
    assert!(matches!(
        check(&"a,".repeat(5_000)),
        Err(LogError::TooLong(10_000))
    ));
}

#[test]
fn what_is_not_wanted_is_told_to_the_macros() {
    use tracing::level_filters::LevelFilter;
    let cases = [
        ("warn,linkerd=info,hickory=error", LevelFilter::INFO),
        ("error", LevelFilter::ERROR),
        ("info,h2=trace", LevelFilter::TRACE),
        ("off", LevelFilter::OFF),
    ];
    for (directives, most) in cases {
        let (subscriber, handle) = build(directives, Format::Plain, io::sink).unwrap();
        let hint = tracing::Subscriber::max_level_hint(&subscriber);
        assert_eq!(hint, Some(most), "{directives}");
        handle.set("debug").unwrap();
        let hint = tracing::Subscriber::max_level_hint(&subscriber);
        assert_eq!(hint, Some(LevelFilter::DEBUG), "{directives}, then debug");
    }
}
