//! Owns the iptables rules of a meshed network namespace as text (contract 9.5). Runs nothing and reads nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::Serialize;

/// Chain for what arrives at the pod; jumped to from PREROUTING (contract 9.5).
pub const REDIRECT_CHAIN: &str = "PROXY_INIT_REDIRECT";
/// Chain for what the pod's own processes send; jumped to from OUTPUT (contract 9.5).
pub const OUTPUT_CHAIN: &str = "PROXY_INIT_OUTPUT";

/// The multiport match takes 15 slots and a range fills two of them (iptables-extensions(8)).
const MULTIPORT_SLOTS: usize = 15;

/// One port or an inclusive range, as in `--inbound-ports-to-ignore 4190,4191,8000-8010`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PortRange {
    /// First port.
    pub low: u16,
    /// Last port, equal to `low` for a single one.
    pub high: u16,
}

/// Why a port or range could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no port and no range of ports: write `443` or `8000-8010`, from 1 to 65535, lower end first"
)]
pub struct PortRangeError(String);

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || PortRangeError(text.to_owned());
        let one = |part: &str| part.trim().parse::<u16>().map_err(|_| fail());
        let (low, high) = match text.split_once('-') {
            Some((low, high)) => (one(low)?, one(high)?),
            None => (one(text)?, one(text)?),
        };
        if low == 0 || low > high {
            return Err(fail());
        }
        Ok(PortRange { low, high })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}:{}", self.low, self.high)
        }
    }
}

/// What the rules depend on; the defaults are those of contract 9.5.
#[derive(Clone, Debug, Serialize)]
pub struct Rules {
    /// Port of the proxy that takes what arrives.
    pub incoming_proxy_port: u16,
    /// Port of the proxy that takes what leaves.
    pub outgoing_proxy_port: u16,
    /// User whose own traffic is left alone: the proxy's.
    pub proxy_uid: u32,
    /// Group whose own traffic is left alone, if any.
    pub proxy_gid: Option<u32>,
    /// Arriving at these ports goes to the application at once.
    pub inbound_ports_to_ignore: Vec<PortRange>,
    /// Leaving for these ports goes out at once.
    pub outbound_ports_to_ignore: Vec<PortRange>,
    /// Arriving from these networks goes to the application at once; leaving is not affected (contract 9.5).
    pub subnets_to_ignore: Vec<IpNet>,
    /// If not empty, only these arriving ports are redirected.
    pub ports_to_redirect: Vec<u16>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            incoming_proxy_port: 4143,
            outgoing_proxy_port: 4140,
            proxy_uid: 2102,
            proxy_gid: None,
            inbound_ports_to_ignore: [4190, 4191]
                .map(|port| PortRange {
                    low: port,
                    high: port,
                })
                .to_vec(),
            outbound_ports_to_ignore: Vec::new(),
            subnets_to_ignore: Vec::new(),
            ports_to_redirect: Vec::new(),
        }
    }
}

/// Which address family a rule set is for; subnets of the other one are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl Rules {
    /// The input for `iptables-restore --noflush`: one transaction that creates or rebuilds both chains.
    ///
    /// `saved` is what `iptables-save -t nat` printed before: jumps of an earlier run are taken out first, so that running
    /// it again changes nothing.
    pub fn restore_input(&self, family: Family, saved: &str) -> String {
        let mut lines = vec!["*nat".to_owned()];
        lines.extend([REDIRECT_CHAIN, OUTPUT_CHAIN].map(|chain| format!(":{chain} - [0:0]")));
        lines.extend(earlier_jumps(saved));
        lines.extend(
            self.redirect(family)
                .into_iter()
                .map(|rule| format!("-A {REDIRECT_CHAIN} {rule}")),
        );
        lines.push(format!("-A PREROUTING -j {REDIRECT_CHAIN}"));
        lines.extend(
            self.output()
                .into_iter()
                .map(|rule| format!("-A {OUTPUT_CHAIN} {rule}")),
        );
        lines.push(format!("-A OUTPUT -j {OUTPUT_CHAIN}"));
        lines.push("COMMIT\n".to_owned());
        lines.join("\n")
    }

    fn redirect(&self, family: Family) -> Vec<String> {
        let mut rules = ignore_ports(&self.inbound_ports_to_ignore);
        let subnets: BTreeSet<&IpNet> = self
            .subnets_to_ignore
            .iter()
            .filter(|net| {
                matches!(
                    (net, family),
                    (IpNet::V4(_), Family::V4) | (IpNet::V6(_), Family::V6)
                )
            })
            .collect();
        rules.extend(
            subnets
                .into_iter()
                .map(|net| format!("-s {} -p tcp -j RETURN", net.trunc())),
        );
        let port = self.incoming_proxy_port;
        if self.ports_to_redirect.is_empty() {
            rules.push(format!("-p tcp -j REDIRECT --to-ports {port}"));
        }
        rules.extend(
            self.ports_to_redirect
                .iter()
                .map(|only| format!("-p tcp --dport {only} -j REDIRECT --to-ports {port}")),
        );
        rules
    }

    fn output(&self) -> Vec<String> {
        let mut rules = vec![format!("-m owner --uid-owner {} -j RETURN", self.proxy_uid)];
        rules.extend(
            self.proxy_gid
                .map(|gid| format!("-m owner --gid-owner {gid} -j RETURN")),
        );
        rules.push("-o lo -j RETURN".to_owned());
        rules.extend(ignore_ports(&self.outbound_ports_to_ignore));
        rules.push(format!(
            "-p tcp -j REDIRECT --to-ports {}",
            self.outgoing_proxy_port
        ));
        rules
    }
}

fn ignore_ports(ports: &[PortRange]) -> Vec<String> {
    let mut groups: Vec<(usize, Vec<String>)> = Vec::new();
    for range in ports {
        let slots = if range.low == range.high { 1 } else { 2 };
        match groups.last_mut() {
            Some((used, group)) if *used + slots <= MULTIPORT_SLOTS => {
                *used += slots;
                group.push(range.to_string());
            }
            _ => groups.push((slots, vec![range.to_string()])),
        }
    }
    groups
        .into_iter()
        .map(|(_, group)| format!("-p tcp -m multiport --dports {} -j RETURN", group.join(",")))
        .collect()
}

fn earlier_jumps(saved: &str) -> impl Iterator<Item = String> + '_ {
    saved.lines().filter_map(|line| {
        let rule = line.trim().strip_prefix("-A ")?;
        let (chain, _) = rule.split_once(' ')?;
        let ours = rule.ends_with(&format!("-j {REDIRECT_CHAIN}"))
            || rule.ends_with(&format!("-j {OUTPUT_CHAIN}"));
        (ours && matches!(chain, "PREROUTING" | "OUTPUT")).then(|| format!("-D {rule}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn defaults_are_the_golden_rules() {
        assert_eq!(
            Rules::default().restore_input(Family::V4, ""),
            "*nat\n\
             :PROXY_INIT_REDIRECT - [0:0]\n\
             :PROXY_INIT_OUTPUT - [0:0]\n\
             -A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,4191 -j RETURN\n\
             -A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-ports 4143\n\
             -A PREROUTING -j PROXY_INIT_REDIRECT\n\
             -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN\n\
             -A PROXY_INIT_OUTPUT -o lo -j RETURN\n\
             -A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-ports 4140\n\
             -A OUTPUT -j PROXY_INIT_OUTPUT\n\
             COMMIT\n"
        );
    }

    #[test]
    fn every_option_is_the_golden_rules() {
        let rules = Rules {
            proxy_gid: Some(2103),
            outbound_ports_to_ignore: vec![
                PortRange { low: 25, high: 25 },
                PortRange {
                    low: 8000,
                    high: 8010,
                },
            ],
            subnets_to_ignore: ["10.1.2.3/8", "fd00::/8"]
                .map(|net| net.parse().expect("a network"))
                .to_vec(),
            ports_to_redirect: vec![80, 443],
            ..Rules::default()
        };
        let saved = "-A PREROUTING -j PROXY_INIT_REDIRECT\n-A OUTPUT -m comment --comment x -j PROXY_INIT_OUTPUT\n\
                     -A PREROUTING -j OTHER\n";
        assert_eq!(
            rules.restore_input(Family::V4, saved),
            "*nat\n\
             :PROXY_INIT_REDIRECT - [0:0]\n\
             :PROXY_INIT_OUTPUT - [0:0]\n\
             -D PREROUTING -j PROXY_INIT_REDIRECT\n\
             -D OUTPUT -m comment --comment x -j PROXY_INIT_OUTPUT\n\
             -A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,4191 -j RETURN\n\
             -A PROXY_INIT_REDIRECT -s 10.0.0.0/8 -p tcp -j RETURN\n\
             -A PROXY_INIT_REDIRECT -p tcp --dport 80 -j REDIRECT --to-ports 4143\n\
             -A PROXY_INIT_REDIRECT -p tcp --dport 443 -j REDIRECT --to-ports 4143\n\
             -A PREROUTING -j PROXY_INIT_REDIRECT\n\
             -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN\n\
             -A PROXY_INIT_OUTPUT -m owner --gid-owner 2103 -j RETURN\n\
             -A PROXY_INIT_OUTPUT -o lo -j RETURN\n\
             -A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 25,8000:8010 -j RETURN\n\
             -A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-ports 4140\n\
             -A OUTPUT -j PROXY_INIT_OUTPUT\n\
             COMMIT\n"
        );
        assert!(
            rules
                .restore_input(Family::V6, "")
                .contains("-s fd00::/8 -p tcp -j RETURN")
        );
    }

    #[test]
    fn ranges_are_read_strictly() {
        assert_eq!(
            "8000-8010".parse(),
            Ok(PortRange {
                low: 8000,
                high: 8010
            })
        );
        for bad in ["", "0", "9-8", "65536", "a", "1-2-3", "-5"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// Each port is in exactly one rule, in order, and no rule has more than 15 slots.
        #[test]
        fn groups_keep_all_ports_within_the_limit(ports in proptest::collection::vec((1u16..60000, 0u16..5), 0..80)) {
            let ports: Vec<PortRange> = ports.into_iter().map(|(low, n)| PortRange { low, high: low + n }).collect();
            let rules = ignore_ports(&ports);
            let mut seen = Vec::new();
            for rule in &rules {
                let list = rule.split(' ').nth(5).expect("the list of ports");
                let slots: usize = list.split(',').map(|item| 1 + item.matches(':').count()).sum();
                prop_assert!(slots <= MULTIPORT_SLOTS);
                seen.extend(list.split(',').map(str::to_owned));
            }
            prop_assert_eq!(seen, ports.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }
}
