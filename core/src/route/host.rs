//! Matching the host of a request. Case, port, user part and a trailing dot never matter (case H17).

use std::{net::IpAddr, sync::Arc};

use super::MatchError;
use crate::name;

/// A host a route serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatch {
    /// Exactly this name, lower-case, without trailing dot. Built by [`HostMatch::exact`].
    Exact(Arc<str>),
    /// Names below this one: `.example.com`, lower-case, with the leading dot. Built by [`HostMatch::suffix`].
    Suffix(Arc<str>),
}

impl HostMatch {
    /// One name.
    pub fn exact(host: &str) -> Result<Self, MatchError> {
        Ok(Self::Exact(Arc::from(checked(host)?)))
    }

    /// All names below `suffix`, given without the wildcard: `example.com`.
    pub fn suffix(suffix: &str) -> Result<Self, MatchError> {
        Ok(Self::Suffix(Arc::from(format!(".{}", checked(suffix)?))))
    }

    /// All names below the labels in reverse order, as the policy API sends them: `["com", "example"]`.
    pub fn suffix_of_reverse_labels<S: AsRef<str>>(labels: &[S]) -> Result<Self, MatchError> {
        let labels: Vec<&str> = labels.iter().rev().map(AsRef::as_ref).collect();
        Self::suffix(&labels.join("."))
    }

    /// `example.com` or `*.example.com`, as in a manifest.
    pub fn parse(text: &str) -> Result<Self, MatchError> {
        match text.strip_prefix("*.") {
            Some(suffix) => Self::suffix(suffix),
            None => Self::exact(text),
        }
    }

    /// Specificity for a bare host.
    fn matches(&self, host: &str) -> Option<HostSpecificity> {
        match self {
            Self::Exact(name) => host
                .eq_ignore_ascii_case(name)
                .then_some(HostSpecificity::Exact(name.len())),
            Self::Suffix(suffix) => {
                let at = host.len().checked_sub(suffix.len())?;
                let (above, end) = host.as_bytes().split_at_checked(at)?;
                (!above.is_empty() && end.eq_ignore_ascii_case(suffix.as_bytes()))
                    .then_some(HostSpecificity::Suffix(suffix.len()))
            }
        }
    }
}

fn checked(host: &str) -> Result<String, MatchError> {
    let bare = host.strip_suffix('.').unwrap_or(host);
    if bare.parse::<IpAddr>().is_ok() {
        return Err(MatchError::HostAddress(name::excerpt(host)));
    }
    name::check_dns(bare).map_err(|_| MatchError::Host(name::excerpt(host)))?;
    Ok(bare.to_ascii_lowercase())
}

/// In ascending order; within a kind the longer name is the more specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostSpecificity {
    Any,
    Suffix(usize),
    Exact(usize),
}

/// The best of the hosts for a bare request host; without hosts every request matches, even one that names no host.
pub(super) fn specificity(hosts: &[HostMatch], host: Option<&str>) -> Option<HostSpecificity> {
    if hosts.is_empty() {
        return Some(HostSpecificity::Any);
    }
    let host = host?;
    hosts.iter().filter_map(|m| m.matches(host)).max()
}

/// The host of an authority, without user part, port and trailing dot; an IPv6 address keeps its brackets.
pub(super) fn bare(authority: &str) -> &str {
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => host,
        None => authority,
    };
    let host = match host.rsplit_once(':') {
        // A colon inside brackets belongs to the address.
        Some((before, port)) if port.bytes().all(|b| b.is_ascii_digit()) => before,
        _ => host,
    };
    host.strip_suffix('.').unwrap_or(host)
}
