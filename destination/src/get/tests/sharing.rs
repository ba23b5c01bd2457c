//! What equal subscriptions share: one state, and each message encoded once.

use super::*;

fn next(stream: &mut GetStream) -> Bytes {
    futures_util::FutureExt::now_or_never(stream.next())
        .expect("a message")
        .expect("open")
}

#[test]
fn equal_subscriptions_share_the_bytes_of_their_messages() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(&shared, &slice("a", "IPv4", 80, &[plain("10.1.0.1")]));
    let mut streams: Vec<GetStream> = (0..50).map(|_| open(&views)).collect();
    assert_eq!(views.len(), 1);
    let mut same = |what: &str| {
        let messages: Vec<Bytes> = streams.iter_mut().map(next).collect();
        assert!(
            messages.iter().all(|m| m.as_ptr() == messages[0].as_ptr()),
            "{what}"
        );
        decoded(&messages[0])
    };
    same("the first message");
    let two = [plain("10.1.0.1"), plain("10.1.0.2")];
    apply(&shared, &slice("a", "IPv4", 80, &two));
    let step = same("an addition").update.expect("set");
    assert!(matches!(step, update::Update::Add(set) if set.addrs.len() == 1));
    apply(&shared, &slice("a", "IPv4", 80, &two[..1]));
    assert!(matches!(
        same("a removal").update,
        Some(update::Update::Remove(_))
    ));
}

#[test]
fn a_stream_that_missed_changes_gets_the_difference_to_what_it_knows() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let set = |last: &[u8]| {
        let endpoints: Vec<String> = last.iter().map(|l| plain(&format!("10.1.0.{l}"))).collect();
        apply(&shared, &slice("a", "IPv4", 80, &endpoints));
    };
    set(&[1, 2]);
    let (mut quick, mut slow) = (open(&views), open(&views));
    let (mut one, mut two) = (Client::default(), Client::default());
    one.drain(&mut quick);
    two.drain(&mut slow);
    for last in [&[1, 2, 3][..], &[2, 3], &[2, 3, 4]] {
        set(last);
        one.drain(&mut quick);
    }
    assert_eq!(one.messages, 4);
    two.drain(&mut slow);
    assert_eq!(two.messages, 3, "one addition, then one removal");
    assert_eq!(one.endpoints, two.endpoints);
    // Back to what it knew: nothing to say.
    set(&[2, 3]);
    set(&[2, 3, 4]);
    two.drain(&mut slow);
    assert_eq!(two.messages, 3);
}

#[test]
fn messages_are_not_kept_by_streams_that_have_sent_them() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    apply(&shared, &slice("a", "IPv4", 80, &[plain("10.1.0.1")]));
    let mut stream = open(&views);
    let first = next(&mut stream);
    assert!(futures_util::FutureExt::now_or_never(stream.next()).is_none());
    assert!(stream.pending.0.is_empty());
    apply(&shared, &slice("a", "IPv4", 80, &[plain("10.1.0.2")]));
    let _ = next(&mut stream);
    let _ = next(&mut stream);
    assert!(futures_util::FutureExt::now_or_never(stream.next()).is_none());
    assert!(
        first.is_unique(),
        "the first state and its messages are gone"
    );
}

/// The design's limit of 20 KiB for a stream is spent on the connection (`weft-bench control-plane` measures it); what
/// discovery adds to that is small and does not depend on the number of endpoints.
#[test]
fn a_stream_is_small() {
    let (shared, views) = views(settings());
    apply(&shared, SERVICE);
    let stream = open(&views);
    assert!(
        size_of::<GetStream>() <= 384,
        "{} bytes",
        size_of::<GetStream>()
    );
    let mut stream = stream;
    let next = stream.next();
    assert!(size_of_val(&next) <= 384, "{} bytes", size_of_val(&next));
}
