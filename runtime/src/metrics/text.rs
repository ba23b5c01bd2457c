//! A label value that comes from outside: prometheus-client writes values as they are, so this one escapes.
//! It does not shorten or otherwise change them.

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use std::fmt::{self, Write};
use std::sync::Arc;

/// Text of any origin as a label value, cheap to clone; `\`, `"` and line ends are escaped when written.
///
/// Use it for whatever a client, a file or the control plane chose (authorities, names, SNI): without escaping, a quote
/// in it would forge labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(Arc<str>);

impl Text {
    /// The text itself, unescaped.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Text {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Arc::from(text))
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl EncodeLabelValue for Text {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let mut rest = self.as_str();
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            let (plain, special) = rest.split_at(at);
            encoder.write_str(plain)?;
            let mut special = special.chars();
            match special.next() {
                Some('\n') => encoder.write_str("\\n")?,
                Some(c) => {
                    encoder.write_char('\\')?;
                    encoder.write_char(c)?;
                }
                None => break,
            }
            rest = special.as_str();
        }
        encoder.write_str(rest)
    }
}
