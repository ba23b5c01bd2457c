//! Owns where settings come from: the environment of the process, or a map. Does not know any variable.

use std::collections::HashMap;
use std::env::{self, VarError};

/// A source of variables.
pub trait Env {
    /// The value of a variable, none if it is unset.
    ///
    /// # Errors
    /// When the value is not Unicode.
    fn var(&self, name: &str) -> Result<Option<String>, NotUnicode>;
}

/// A value that is not Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is not Unicode text")]
pub struct NotUnicode;

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where the environment is read"
    )]
    fn var(&self, name: &str) -> Result<Option<String>, NotUnicode> {
        match env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(NotUnicode),
        }
    }
}

impl Env for HashMap<String, String> {
    fn var(&self, name: &str) -> Result<Option<String>, NotUnicode> {
        Ok(self.get(name).cloned())
    }
}
