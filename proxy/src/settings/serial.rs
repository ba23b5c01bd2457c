//! Owns how durations look in printed settings: `10s`, `300ms`. Does not read them.

use serde::Serializer;
use std::time::Duration;

pub(super) fn duration<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{duration:?}"))
}

pub(super) fn optional_duration<S: Serializer>(
    duration: &Option<Duration>,
    s: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(present) => self::duration(present, s),
        None => s.serialize_none(),
    }
}
