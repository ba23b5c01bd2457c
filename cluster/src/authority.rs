//! Owns reading `host[:port]` as proxies send it, and the names of Services in a cluster domain; does not look anything up.

use std::{net::IpAddr, sync::Arc};

use crate::Name;

/// `host[:port]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, if it is given; never 0.
    pub port: Option<u16>,
}

/// The host of an [`Authority`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name, as written.
    Name(String),
}

/// A Service's name, with the host name of one of its pods before it if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHost {
    /// The Service.
    pub service: Name,
    /// The pod's host name.
    pub hostname: Option<Arc<str>>,
}

impl Authority {
    /// Port of an authority without one.
    pub const DEFAULT_PORT: u16 = 80;

    /// Reads `host`, `host:port`, `[v6]` and `[v6]:port`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let (address, rest) = rest.split_once(']')?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(parse_port(port)?),
                None if rest.is_empty() => None,
                None => return None,
            };
            return Some(Self {
                host: Host::Ip(IpAddr::V6(address.parse().ok()?)),
                port,
            });
        }
        if let Ok(ip) = text.parse() {
            return Some(Self {
                host: Host::Ip(ip),
                port: None,
            });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(parse_port(port)?)),
            None => (text, None),
        };
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || host.len() > 253 || !host.chars().all(valid) {
            return None;
        }
        let host = host
            .parse()
            .map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
        Some(Self { host, port })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .filter(|port| *port > 0)
}

impl ServiceHost {
    /// Reads `[<hostname>.]<service>.<namespace>.svc.<domain>`, without a trailing dot (contract 8.1).
    pub fn parse(host: &str, domain: &str) -> Option<Self> {
        let rest = host.strip_suffix(domain)?.strip_suffix(".svc.")?;
        let labels: Vec<&str> = rest.split('.').collect();
        if labels.iter().any(|label| label.is_empty()) {
            return None;
        }
        match labels.as_slice() {
            [service, namespace] => Some(Self {
                service: Name::new(namespace, service),
                hostname: None,
            }),
            [hostname, service, namespace] => Some(Self {
                service: Name::new(namespace, service),
                hostname: Some((*hostname).into()),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let name = |host: &str, port| {
            Some(Authority {
                host: Host::Name(host.to_owned()),
                port,
            })
        };
        let ip = |host: &str, port| {
            Some(Authority {
                host: Host::Ip(host.parse().expect("an address")),
                port,
            })
        };
        assert_eq!(
            Authority::parse("web.default.svc.cluster.local:8080"),
            name("web.default.svc.cluster.local", Some(8080))
        );
        assert_eq!(Authority::parse("web"), name("web", None));
        assert_eq!(Authority::parse("10.1.2.3:80"), ip("10.1.2.3", Some(80)));
        assert_eq!(Authority::parse("10.1.2.3"), ip("10.1.2.3", None));
        assert_eq!(Authority::parse("[::1]:80"), ip("::1", Some(80)));
        assert_eq!(Authority::parse("[::1]"), ip("::1", None));
        assert_eq!(Authority::parse("::1"), ip("::1", None));
        for bad in [
            "",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:+80",
            "a:b:80",
            "[::1",
            "[::1]80",
            "[1.2.3.4]:80",
            "a b",
            "a/b",
        ] {
            assert_eq!(Authority::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn service_names() {
        let parse = |host| ServiceHost::parse(host, "cluster.local");
        let web = Name::new("default", "web");
        assert_eq!(
            parse("web.default.svc.cluster.local"),
            Some(ServiceHost {
                service: web.clone(),
                hostname: None
            })
        );
        let pod = ServiceHost {
            service: web,
            hostname: Some("web-0".into()),
        };
        assert_eq!(parse("web-0.web.default.svc.cluster.local"), Some(pod));
        for other in [
            "web.default.svc.cluster.local.",
            "default.svc.cluster.local",
            "a.b.c.d.svc.cluster.local",
            "web.default.svc.xcluster.local",
            "web.default.pod.cluster.local",
            ".default.svc.cluster.local",
            "example.com",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
