//! Streams that are silent, busy, broken or refused, on a paused clock.
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TERMINAL: &[Code] = &[Code::InvalidArgument, Code::FailedPrecondition];

/// What the server does with one stream.
enum Act {
    /// No response headers, ever.
    Hang,
    /// An error instead of a stream.
    Refuse(Code),
    /// Messages at these seconds after the opening, then an error or silence.
    Send(Vec<u32>, Option<Code>),
    /// The stream ends at once without a status.
    End,
}

fn open(act: Act) -> Opening<u32> {
    Box::pin(async move {
        let start = Instant::now();
        match act {
            Act::Hang => std::future::pending().await,
            Act::Refuse(code) => Err(Status::new(code, "refused")),
            Act::End => Ok(futures_util::stream::empty().boxed()),
            Act::Send(times, end) => {
                let sent = futures_util::stream::iter(times).then(move |at| async move {
                    tokio::time::sleep_until(start + at * SECOND).await;
                    Ok(at)
                });
                Ok(match end {
                    Some(code) => sent
                        .chain(futures_util::stream::iter([Err(Status::new(
                            code, "broken",
                        ))]))
                        .boxed(),
                    None => sent.chain(futures_util::stream::pending()).boxed(),
                })
            }
        }
    })
}

/// Plays the acts; afterwards the server hangs. Gives the milliseconds of each opening and the events.
async fn play(
    limits: StreamLimits,
    acts: Vec<Act>,
    seconds: u32,
) -> (Vec<u128>, Vec<String>, Option<Code>) {
    let start = Instant::now();
    let mut acts = VecDeque::from(acts);
    let (mut openings, mut events) = (Vec::new(), Vec::new());
    let config = Watch {
        what: "test".into(),
        limits,
        backoff: ExponentialBackoff::new(SECOND / 10, 60 * SECOND, 0.0).unwrap(),
        terminal: TERMINAL,
    };
    let watching = watch(
        &config,
        || {
            openings.push(start.elapsed().as_millis());
            open(acts.pop_front().unwrap_or(Act::Hang))
        },
        |event| {
            events.push(match event {
                Event::Opened => "opened".to_owned(),
                Event::Message(message) => message.to_string(),
            })
        },
    );
    let ended = tokio::time::timeout(seconds * SECOND, watching).await;
    (openings, events, ended.ok().map(|status| status.code()))
}

fn limits(initial: u32, idle: u32, lifetime: u32) -> StreamLimits {
    StreamLimits {
        initial: Some(initial * SECOND),
        idle: Some(idle * SECOND),
        lifetime: Some(lifetime * SECOND),
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_cycled() {
    let silent = || Act::Send(vec![], None);
    let (openings, events, _) = play(
        limits(3, 300, 3600),
        vec![silent(), Act::Hang, silent()],
        10,
    )
    .await;
    assert_eq!(
        openings,
        [0, 3100, 6200, 9300],
        "with headers or without, and no longer each time"
    );
    assert_eq!(events, ["opened", "opened"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_is_opened_again() {
    let (openings, events, _) = play(
        limits(3, 300, 3600),
        vec![Act::Send(vec![1, 200], None)],
        501,
    )
    .await;
    assert_eq!(openings, [0, 500_100]);
    assert_eq!(events, ["opened", "1", "200"]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_stream_ends_with_its_lifetime() {
    let busy = (0..200).map(|minute| minute * 60 + 1).collect();
    let (openings, events, _) = play(limits(3, 300, 3600), vec![Act::Send(busy, None)], 3602).await;
    assert_eq!(openings, [0, 3_600_100]);
    assert_eq!(events.len(), 1 + 60);
}

#[tokio::test(start_paused = true)]
async fn without_limits_a_stream_stays() {
    let none = StreamLimits::default();
    let (openings, ..) = play(none, vec![Act::Send(vec![5], None)], 100_000).await;
    assert_eq!(openings, [0]);

    let endless = StreamLimits {
        initial: Some(Duration::MAX),
        idle: Some(Duration::MAX),
        lifetime: Some(Duration::MAX),
    };
    let (openings, ..) = play(endless, vec![Act::Send(vec![5], None)], 100_000).await;
    assert_eq!(openings, [0]);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_until_a_message_comes() {
    let refuse = || Act::Refuse(Code::Unavailable);
    let acts = vec![
        refuse(),
        refuse(),
        Act::Refuse(Code::NotFound),
        Act::End,
        Act::Send(vec![0], Some(Code::Internal)),
        refuse(),
    ];
    let (openings, events, ended) = play(limits(3, 300, 3600), acts, 2).await;
    assert_eq!(openings, [0, 100, 300, 700, 1500, 1600, 1800]);
    assert_eq!(events, ["opened", "opened", "0"]);
    assert_eq!(ended, None);
}

#[tokio::test(start_paused = true)]
async fn terminal_answers_are_returned() {
    for &code in TERMINAL {
        let (openings, _, ended) = play(limits(3, 300, 3600), vec![Act::Refuse(code)], 60).await;
        assert_eq!((openings.len(), ended), (1, Some(code)));
        let later = Act::Send(vec![1], Some(code));
        let (_, events, ended) = play(limits(3, 300, 3600), vec![later], 60).await;
        assert_eq!((events.len(), ended), (2, Some(code)));
    }
}
