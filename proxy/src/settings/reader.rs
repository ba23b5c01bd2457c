//! Owns `Reader`: reads variables one by one and remembers what was wrong, so that reading goes on.
//! Does not know which variables there are.

use super::env::Env;
use super::{PREFIX, SettingError};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weft_core::parse;

/// Longest part of a value that an error shows, in characters.
const SHOWN: usize = 120;
const CORRECT_IT: &str = "correct it, or unset it for the default";

/// Reads variables by their names without the prefix of linkerd2-proxy; a name that begins with `WEFT_` is taken as
/// it is.
///
/// A variable that cannot be read counts as unset and leaves an error behind.
pub(super) struct Reader<'e> {
    env: &'e dyn Env,
    errors: Vec<SettingError>,
    not_yet: Vec<String>,
}

impl<'e> Reader<'e> {
    pub(super) fn new(env: &'e dyn Env) -> Self {
        Self {
            env,
            errors: Vec::new(),
            not_yet: Vec::new(),
        }
    }

    /// What is not acted on, and what was wrong.
    pub(super) fn finish(self) -> (Vec<String>, Vec<SettingError>) {
        (self.not_yet, self.errors)
    }

    /// The value, verbatim.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let name = full(name);
        match self.env.var(&name) {
            Ok(value) => value,
            Err(error) => {
                // Said once, although some variables are looked at twice.
                if !self.errors.iter().any(|e| e.name == name) {
                    self.push(name, None, error.to_string(), CORRECT_IT);
                }
                None
            }
        }
    }

    /// The value as `parse` understands it.
    pub(super) fn read<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.push(full(name), Some(&text), error.to_string(), CORRECT_IT);
                None
            }
        }
    }

    /// The same, where an empty value counts as unset.
    pub(super) fn non_empty<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.text(name).filter(|text| !text.is_empty())?;
        self.read(name, parse)
    }

    /// The same, where it is an error to leave it out; `why` says what it is for.
    pub(super) fn required<T, E: Display>(
        &mut self,
        name: &str,
        why: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.read(name, parse);
        if value.is_none() {
            self.missing(name, why);
        }
        value
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        self.read(name, parse::duration)
    }

    pub(super) fn duration_or(&mut self, name: &str, default: Duration) -> Duration {
        self.duration(name).unwrap_or(default)
    }

    pub(super) fn boolean_or(&mut self, name: &str, default: bool) -> bool {
        self.read(name, parse::boolean).unwrap_or(default)
    }

    /// A number of things of which there must be at least one.
    pub(super) fn count(&mut self, name: &str) -> Option<usize> {
        self.read(name, |text| match parse::number::<usize>(text) {
            Ok(0) => Err("expected at least 1".to_owned()),
            other => other.map_err(|e| e.to_string()),
        })
    }

    pub(super) fn count_or(&mut self, name: &str, default: usize) -> usize {
        self.count(name).unwrap_or(default)
    }

    pub(super) fn socket_addr_or<I>(&mut self, name: &str, default: (I, u16)) -> SocketAddr
    where
        I: Into<IpAddr>,
    {
        let addr = self.read(name, |text| {
            text.parse()
                .map_err(|_| "expected a socket address such as 127.0.0.1:4140")
        });
        addr.unwrap_or_else(|| SocketAddr::new(default.0.into(), default.1))
    }

    /// Refuses a value that can be read, but not together with others.
    pub(super) fn refuse(&mut self, name: &str, reason: &str, remedy: &str) {
        let value = self.text(name);
        self.push(full(name), value.as_deref(), reason.to_owned(), remedy);
    }

    /// Refuses that a variable is unset, if it is: one that cannot be read has its error already.
    pub(super) fn missing(&mut self, name: &str, why: &str) {
        let unset = self.text(name).is_none();
        let name = full(name);
        if unset && !self.errors.iter().any(|e| e.name == name) {
            self.push(name, None, why.to_owned(), "set it");
        }
    }

    /// Notes a variable that this version does not act on.
    pub(super) fn later(&mut self, name: &str) {
        self.not_yet.push(full(name));
    }

    fn push(&mut self, name: String, value: Option<&str>, reason: String, remedy: &str) {
        self.errors.push(SettingError {
            name,
            value: value.map(|text| text.chars().take(SHOWN).collect()),
            reason,
            remedy: remedy.to_owned(),
        });
    }
}

fn full(name: &str) -> String {
    if name.starts_with("WEFT_") {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}
