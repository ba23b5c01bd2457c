//! `PortSet`: a set of TCP ports kept as sorted, disjoint ranges, so that "all ports but one" costs two entries.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Serialize, Serializer};

use crate::parse::ParseError;

/// A set of ports. Text form by contract 1.1: comma list of `port` and `first-last`, blanks and empty items tolerated.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PortSet {
    /// Sorted by start; no two overlap or touch.
    ranges: Vec<RangeInclusive<u16>>,
}

impl PortSet {
    /// Whether the port is a member.
    pub fn contains(&self, port: u16) -> bool {
        let after = self.ranges.partition_point(|range| *range.start() <= port);
        after
            .checked_sub(1)
            .and_then(|last| self.ranges.get(last))
            .is_some_and(|range| range.contains(&port))
    }

    /// Whether the set has no port.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ports in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            ranges: self.ranges.iter(),
            current: None,
        }
    }

    fn from_ranges(mut ranges: Vec<RangeInclusive<u16>>) -> Self {
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                    let end = *last.end().max(range.end());
                    *last = *last.start()..=end;
                }
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }
}

/// Ports of a [`PortSet`] in ascending order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    ranges: std::slice::Iter<'a, RangeInclusive<u16>>,
    current: Option<RangeInclusive<u16>>,
}

impl Iterator for Iter<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        loop {
            if let Some(port) = self.current.as_mut().and_then(Iterator::next) {
                return Some(port);
            }
            self.current = Some(self.ranges.next()?.clone());
        }
    }
}

impl<'a> IntoIterator for &'a PortSet {
    type Item = u16;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        Self::from_ranges(ports.into_iter().map(|port| port..=port).collect())
    }
}

impl FromStr for PortSet {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        let ranges = items.map(parse_range).collect::<Result<_, _>>()?;
        Ok(Self::from_ranges(ranges))
    }
}

fn parse_range(item: &str) -> Result<RangeInclusive<u16>, ParseError> {
    let Some((first, last)) = item.split_once('-') else {
        let port = parse_port(item)?;
        return Ok(port..=port);
    };
    let (first, last) = (parse_port(first.trim())?, parse_port(last.trim())?);
    if first > last {
        return Err(ParseError::ReversedRange { first, last });
    }
    Ok(first..=last)
}

fn parse_port(text: &str) -> Result<u16, ParseError> {
    crate::parse::number(text).map_err(|_| {
        ParseError::unexpected("a port (0 to 65535) or a range such as 8080-8090", text)
    })
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            if range.start() == range.end() {
                write!(f, "{}", range.start())?;
            } else {
                write!(f, "{}-{}", range.start(), range.end())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortSet({self})")
    }
}

impl Serialize for PortSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
