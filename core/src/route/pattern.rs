//! A regular expression that must match a whole value, with bounds on what it may cost. The regex crate matches in linear time,
//! so the size of the compiled form is what is left to bound.

use regex::bytes::{Regex, RegexBuilder};

use super::MatchError;
use crate::name;

/// Largest compiled form in bytes. `\d+` and the like take some 20 KiB; `[\w-]{1,63}(\.[\w-]{1,63})*`, where `\w` has
/// the letters of all scripts, takes 8 MiB, and must be accepted because linkerd2-proxy accepts it.
pub const MAX_REGEX_SIZE: usize = 8 << 20;

/// Largest cache of a search in bytes; beyond it matching gets slower, not wrong.
const MAX_REGEX_CACHE: usize = 1 << 20;

/// A bounded, anchored regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    /// Compiles an expression. The anchors are added here.
    pub fn new(pattern: &str) -> Result<Self, MatchError> {
        // First as given, so that `a)|(b` cannot reach out of the group that the anchors are put around.
        compile(pattern, pattern)?;
        Ok(Self {
            regex: compile(&format!(r"\A(?:{pattern})\z"), pattern)?,
        })
    }

    /// Whether the expression matches all of the value.
    pub fn matches(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl Eq for Pattern {}

fn compile(anchored: &str, pattern: &str) -> Result<Regex, MatchError> {
    RegexBuilder::new(anchored)
        .size_limit(MAX_REGEX_SIZE)
        .dfa_size_limit(MAX_REGEX_CACHE)
        .build()
        .map_err(|error| MatchError::Regex {
            pattern: name::excerpt(pattern),
            reason: match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!("its compiled form exceeds {limit} bytes, make it simpler")
                }
                other => other.to_string(),
            },
        })
}
