//! Where log lines go and which are written: one subscriber for the process, whose filter can be changed while it runs.
//! It names no target of its own, and it does not write access logs.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, fmt, reload};

mod directives;
mod throttle;

pub use throttle::Throttle;

/// Longest accepted text of directives, in bytes: they may come from the admin port.
pub const DIRECTIVES_MAX: usize = 8 * 1024;

/// How a line looks (`LOG_FORMAT`, contract 1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Seconds since the start, level, thread, target, fields.
    #[default]
    Plain,
    /// One JSON object a line, with the time of RFC 3339 and the spans.
    Json,
}

/// Logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directives are not understood.
    #[error(
        "log directives {text:?}: {source}; the form is LEVEL or TARGET=LEVEL, separated by commas"
    )]
    Directives {
        /// What was given.
        text: String,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
    /// The directives are longer than [`DIRECTIVES_MAX`].
    #[error("log directives of {0} bytes are too long; the limit is 8192")]
    TooLong(usize),
    /// Another subscriber is installed already.
    #[error("logging is set up already in this process")]
    AlreadySet,
    /// The subscriber was dropped.
    #[error("logging has ended in this process")]
    Ended,
}

/// Reads and changes the filter of the process. Clones change the same filter.
#[derive(Clone, Debug)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
}

/// Starts logging to standard output, filtered by `directives` (the form of `LOG`, contract 1.2).
///
/// `off` writes nothing. Directives for the targets `linkerd`, `linkerd2_proxy`, `linkerd_app` and below also apply
/// to our
/// modules of the same task, unless one names those itself.
///
/// # Errors
/// Directives that are not understood, or a subscriber that is installed already.
pub fn init(directives: &str, format: Format) -> Result<LogHandle, LogError> {
    let (subscriber, handle) = build(directives, format, io::stdout)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadySet)?;
    Ok(handle)
}

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type BoxedLayer = Box<dyn Layer<Filtered> + Send + Sync>;

/// The filter is directly on the registry: only there is the most detailed level it lets through told to the macros, so
/// that what is not wanted costs one comparison.
fn build<W>(
    directives: &str,
    format: Format,
    out: W,
) -> Result<(Layered<BoxedLayer, Filtered>, LogHandle), LogError>
where
    W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(directives)?);
    let lines = fmt::layer()
        .with_writer(out)
        .with_ansi(false)
        .with_thread_ids(true);
    let lines: BoxedLayer = match format {
        Format::Plain => lines.with_timer(uptime()).boxed(),
        Format::Json => lines
            .json()
            .with_span_list(true)
            .with_current_span(false)
            .boxed(),
    };
    let handle = LogHandle {
        filter: handle,
        current: Arc::new(Mutex::new(directives.to_owned())),
    };
    Ok((Registry::default().with(filter).with(lines), handle))
}

fn parse(text: &str) -> Result<EnvFilter, LogError> {
    if text.len() > DIRECTIVES_MAX {
        return Err(LogError::TooLong(text.len()));
    }
    let mapped = directives::with_own_targets(text);
    EnvFilter::builder()
        .parse(mapped)
        .map_err(|source| LogError::Directives {
            text: text.to_owned(),
            source,
        })
}

/// Whether [`init`] would accept these directives.
///
/// # Errors
/// What is wrong with them.
pub fn check(directives: &str) -> Result<(), LogError> {
    parse(directives).map(drop)
}

impl LogHandle {
    /// The directives in force, as they were given.
    pub fn current(&self) -> String {
        self.current.lock().clone()
    }

    /// Replaces the directives, for events from now on.
    ///
    /// # Errors
    /// Directives that are not understood; those in force stay.
    pub fn set(&self, directives: &str) -> Result<(), LogError> {
        let filter = parse(directives)?;
        let mut current = self.current.lock();
        self.filter.reload(filter).map_err(|_| LogError::Ended)?;
        directives.clone_into(&mut current);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
