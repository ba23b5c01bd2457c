//! Readers of the primitive kinds of settings (contract 1.1). They know no variable names and no defaults: whoever
//! reads a setting adds its name to the error, which says what was expected and what was found.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::name::{self, PortSet};

/// Why the text of a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The text has another form than the one asked for.
    #[error("expected {expected}, found {found:?}")]
    Unexpected {
        /// The accepted form, with an example where that helps.
        expected: &'static str,
        /// The text at fault, cut to a printable length.
        found: String,
    },
    /// A range of ports ends before it begins.
    #[error("expected a range from low to high, found {first}-{last}")]
    ReversedRange {
        /// First port as written.
        first: u16,
        /// Last port as written.
        last: u16,
    },
    /// A list has too few or too many entries.
    #[error("expected {expected}, found {found} of them")]
    Count {
        /// The accepted number of entries.
        expected: &'static str,
        /// Entries found.
        found: usize,
    },
}

impl ParseError {
    pub(crate) fn unexpected(expected: &'static str, found: &str) -> Self {
        Self::Unexpected {
            expected,
            found: name::excerpt(found),
        }
    }
}

/// A whole number with one unit of `ms s m h d`, blanks around it allowed; without a unit only zero. No fractions, no `1m30s`.
pub fn duration(text: &str) -> Result<Duration, ParseError> {
    const EXPECTED: &str = "a whole number with a unit (ms, s, m, h or d) such as 10s";
    let invalid = || ParseError::unexpected(EXPECTED, text);
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (amount, unit) = trimmed.split_at_checked(digits).ok_or_else(invalid)?;
    let amount: u64 = amount.parse().map_err(|_| invalid())?;
    let seconds_per_unit = match unit {
        "ms" => return Ok(Duration::from_millis(amount)),
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "" if amount == 0 => 1,
        _ => return Err(invalid()),
    };
    amount
        .checked_mul(seconds_per_unit)
        .map(Duration::from_secs)
        .ok_or_else(invalid)
}

/// A duration as Go's `time.ParseDuration` reads it, which Linkerd's charts and annotations use: `24h0m0s`, `1.5h`, `300ms`. Not
/// negative; only `0` needs no unit.
pub fn go_duration(text: &str) -> Result<Duration, ParseError> {
    let invalid = || ParseError::unexpected("a duration such as 1s, 300ms or 1m30s", text);
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(invalid());
    }
    let in_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c| !in_number(c)).ok_or_else(invalid)?);
        let (unit, tail) = tail.split_at(tail.find(in_number).unwrap_or(tail.len()));
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    Ok(total)
}

/// Exactly `true` or `false`.
pub fn boolean(text: &str) -> Result<bool, ParseError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ParseError::unexpected("true or false", text)),
    }
}

/// A decimal number in the range of `T`; a fraction only if `T` has fractions. No `+`, exponent, `inf` or `NaN`.
pub fn number<T: FromStr>(text: &str) -> Result<T, ParseError> {
    let decimal = text
        .strip_prefix('-')
        .unwrap_or(text)
        .bytes()
        .all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| decimal).ok_or_else(|| {
        ParseError::unexpected("a decimal number within the range of this setting", text)
    })
}

/// A set of ports; see [`PortSet`].
pub fn port_set(text: &str) -> Result<PortSet, ParseError> {
    text.parse()
}

/// A comma list of IP addresses; a CIDR is refused.
pub fn ip_set(text: &str) -> Result<BTreeSet<IpAddr>, ParseError> {
    list(text, |item| {
        item.parse()
            .map_err(|_| ParseError::unexpected("an IP address without prefix length", item))
    })
}

/// A comma list of networks in CIDR form. Host bits are cleared.
pub fn networks(text: &str) -> Result<Vec<IpNet>, ParseError> {
    list(text, |item| {
        item.parse()
            .map(|net: IpNet| net.trunc())
            .map_err(|_| ParseError::unexpected("a network in CIDR form such as 10.0.0.0/8", item))
    })
}

/// A comma list of DNS suffixes; `.` matches all names.
pub fn dns_suffixes(text: &str) -> Result<Vec<DnsSuffix>, ParseError> {
    list(text, DnsSuffix::from_str)
}

/// `ip:port` or `dns-name:port`.
pub fn addr(text: &str) -> Result<Addr, ParseError> {
    text.parse()
}

/// One or two socket addresses: one for each family.
pub fn socket_addrs(text: &str) -> Result<Vec<SocketAddr>, ParseError> {
    let addrs: Vec<SocketAddr> = list(text, |item| {
        item.parse()
            .map_err(|_| ParseError::unexpected("a socket address such as 127.0.0.1:4140", item))
    })?;
    match addrs.len() {
        1 | 2 => Ok(addrs),
        found => Err(ParseError::Count {
            expected: "one or two socket addresses",
            found,
        }),
    }
}

fn list<T, C: FromIterator<T>>(
    text: &str,
    item: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<C, ParseError> {
    text.split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(item)
        .collect()
}

/// The end of a DNS name: `svc.cluster.local` matches itself and every name below it. The root matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSuffix {
    /// Lower-case, without trailing dot; empty for the root.
    suffix: String,
}

impl DnsSuffix {
    /// Whether the name is the suffix or below it; case and a trailing dot do not matter.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).as_bytes();
        let suffix = self.suffix.as_bytes();
        if suffix.is_empty() {
            return true;
        }
        let Some((above, end)) = name
            .len()
            .checked_sub(suffix.len())
            .and_then(|at| name.split_at_checked(at))
        else {
            return false;
        };
        end.eq_ignore_ascii_case(suffix) && above.last().is_none_or(|b| *b == b'.')
    }
}

impl FromStr for DnsSuffix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let suffix = text.strip_suffix('.').unwrap_or(text);
        if text != "." && name::check_dns(suffix).is_err() {
            return Err(ParseError::unexpected(
                "a DNS suffix such as svc.cluster.local, or . for all names",
                text,
            ));
        }
        Ok(Self {
            suffix: suffix.to_ascii_lowercase(),
        })
    }
}

impl fmt::Display for DnsSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.suffix)
    }
}

impl Serialize for DnsSuffix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where a service is reached: an address, or a name that still has to be resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// An IP address and a port.
    Socket(SocketAddr),
    /// A DNS name and a port.
    Name {
        /// Lower-case; a trailing dot is kept since it stops the resolver's search list.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Addr {
    /// Whether this is the machine itself without asking DNS: 127.0.0.0/8, ::1, `localhost`, `localhost.` (contract 0).
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Socket(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Name { host, .. } => host.strip_suffix('.').unwrap_or(host) == "localhost",
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Socket(addr) => addr.port(),
            Self::Name { port, .. } => *port,
        }
    }
}

impl FromStr for Addr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::Socket(addr));
        }
        let invalid = || ParseError::unexpected("ip:port or dns-name:port", text);
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = number(port).map_err(|_| invalid())?;
        let name = host.strip_suffix('.').unwrap_or(host);
        // No top-level domain is a number, so this is an IPv4 address with a mistake in it.
        let numeric = name
            .rsplit('.')
            .next()
            .is_some_and(|label| label.bytes().all(|b| b.is_ascii_digit()));
        if numeric || name::check_dns(name).is_err() {
            return Err(invalid());
        }
        Ok(Self::Name {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(addr) => addr.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl Serialize for Addr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
