//! Matching HTTP requests by path, headers, query and method.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderMap, HeaderName, Method};

use super::{Match, MatchError, Pattern, RequestView};
use crate::name;

/// Conditions on a request, all of which must hold. The default matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// The path; none is the same as the prefix `/`.
    pub path: Option<PathMatch>,
    /// Headers that must match.
    pub headers: Vec<HeaderMatch>,
    /// Query parameters that must match.
    pub query: Vec<QueryMatch>,
    /// The method, compared by case.
    pub method: Option<Method>,
}

impl Match for RequestMatch {
    /// Path length, headers, query parameters, method.
    type Specificity = (usize, usize, usize, bool);

    fn matches(&self, request: &RequestView<'_>) -> Option<Self::Specificity> {
        if self
            .method
            .as_ref()
            .is_some_and(|method| method != request.method)
        {
            return None;
        }
        let path = match &self.path {
            Some(path) => path.matches(request.path)?,
            None => ROOT_LENGTH,
        };
        let query = request.query.unwrap_or_default();
        let all = self.headers.iter().all(|m| m.matches(request.headers))
            && self.query.iter().all(|m| m.matches(query));
        all.then_some((
            path,
            self.headers.len(),
            self.query.len(),
            self.method.is_some(),
        ))
    }

    fn matches_any(_: &RequestView<'_>) -> Option<Self::Specificity> {
        Some((ROOT_LENGTH, 0, 0, false))
    }
}

/// The specificity of the prefix `/`.
const ROOT_LENGTH: usize = 1;

/// A condition on the path. Only its length counts for precedence, not its kind (contract 3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Exactly this path. Built by [`PathMatch::exact`].
    Exact(Arc<str>),
    /// Whole segments at the start, without a slash at the end; empty for the root. Built by [`PathMatch::prefix`].
    Prefix(Arc<str>),
    /// The whole path matches an expression.
    Regex(Pattern),
}

impl PathMatch {
    /// One path, byte for byte.
    pub fn exact(path: &str) -> Result<Self, MatchError> {
        if path.starts_with('/') {
            Ok(Self::Exact(Arc::from(path)))
        } else {
            Err(MatchError::Path(name::excerpt(path)))
        }
    }

    /// All paths below this one and itself; slashes at its end are ignored. Empty is the same as `/`.
    pub fn prefix(path: &str) -> Result<Self, MatchError> {
        if path.is_empty() || path.starts_with('/') {
            Ok(Self::Prefix(Arc::from(path.trim_end_matches('/'))))
        } else {
            Err(MatchError::Path(name::excerpt(path)))
        }
    }

    /// Paths that an expression matches as a whole.
    pub fn regex(pattern: &str) -> Result<Self, MatchError> {
        Pattern::new(pattern).map(Self::Regex)
    }

    /// The length that counts for precedence.
    fn matches(&self, path: &str) -> Option<usize> {
        match self {
            Self::Exact(exact) => (path == &**exact).then_some(exact.len()),
            // The root is no condition, so that `OPTIONS *` and CONNECT, which have no path, find the route for everything.
            Self::Prefix(prefix) if prefix.is_empty() => Some(ROOT_LENGTH),
            Self::Prefix(prefix) => {
                let rest = path.strip_prefix(&**prefix)?;
                (rest.is_empty() || rest.starts_with('/')).then_some(prefix.len())
            }
            // It matches the whole path or nothing.
            Self::Regex(pattern) => pattern.matches(path.as_bytes()).then_some(path.len()),
        }
    }
}

/// A condition on a header. A header that comes several times matches if one of its values does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderMatch {
    /// The value is equal, byte for byte.
    Exact(HeaderName, Arc<[u8]>),
    /// The whole value matches an expression.
    Regex(HeaderName, Pattern),
}

impl HeaderMatch {
    /// A value, byte for byte.
    pub fn exact(name: &str, value: &[u8]) -> Result<Self, MatchError> {
        Ok(Self::Exact(header_name(name)?, Arc::from(value)))
    }

    /// Values that an expression matches as a whole.
    pub fn regex(name: &str, pattern: &str) -> Result<Self, MatchError> {
        Ok(Self::Regex(header_name(name)?, Pattern::new(pattern)?))
    }

    pub(super) fn matches(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Exact(name, value) => headers
                .get_all(name)
                .iter()
                .any(|found| found.as_bytes() == &**value),
            Self::Regex(name, pattern) => headers
                .get_all(name)
                .iter()
                .any(|found| pattern.matches(found.as_bytes())),
        }
    }
}

fn header_name(text: &str) -> Result<HeaderName, MatchError> {
    text.parse()
        .map_err(|_| MatchError::HeaderName(name::excerpt(text)))
}

/// A condition on a query parameter, compared after percent-decoding. One that comes several times matches if one of its values does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryMatch {
    /// The value is equal.
    Exact(Arc<str>, Arc<str>),
    /// The whole value matches an expression.
    Regex(Arc<str>, Pattern),
}

impl QueryMatch {
    /// A value as it is after decoding.
    pub fn exact(name: &str, value: &str) -> Result<Self, MatchError> {
        Ok(Self::Exact(query_name(name)?, Arc::from(value)))
    }

    /// Values that an expression matches as a whole.
    pub fn regex(name: &str, pattern: &str) -> Result<Self, MatchError> {
        Ok(Self::Regex(query_name(name)?, Pattern::new(pattern)?))
    }

    fn matches(&self, query: &str) -> bool {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.any(|(name, value)| match self {
            Self::Exact(wanted, exact) => equal(name, wanted) && equal(value, exact),
            Self::Regex(wanted, pattern) => equal(name, wanted) && pattern.matches(&decoded(value)),
        })
    }
}

fn query_name(text: &str) -> Result<Arc<str>, MatchError> {
    if text.is_empty() {
        Err(MatchError::QueryName)
    } else {
        Ok(Arc::from(text))
    }
}

fn equal(encoded: &str, plain: &str) -> bool {
    decode(encoded).eq(plain.bytes())
}

fn decoded(encoded: &str) -> Cow<'_, [u8]> {
    if encoded.contains(['%', '+']) {
        Cow::Owned(decode(encoded).collect())
    } else {
        Cow::Borrowed(encoded.as_bytes())
    }
}

/// Bytes of a form-encoded text: `+` is a blank, `%41` is `A`, and a `%` without two digits stands for itself (WHATWG URL section 5.1).
fn decode(encoded: &str) -> impl Iterator<Item = u8> {
    let mut rest = encoded.as_bytes();
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        if let (b'%', [high, low, after @ ..]) = (first, after)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            rest = after;
            return Some(high << 4 | low);
        }
        rest = after;
        Some(if *first == b'+' { b' ' } else { *first })
    })
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}
