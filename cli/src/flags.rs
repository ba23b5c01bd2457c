//! How the flags of Linkerd's services are written, for the subcommands that take their arguments: one dash or two, listen
//! addresses, and the flags of the log, which all of them have. What a service does is not known here.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use clap::Args;
use weft_runtime::log;

/// The subcommands that charts start with the flags of Go's flag package.
const SERVICES: [&str; 3] = ["identity", "destination", "injector"];

/// Rewrites the flags of a service, where they have the one dash of Go's flag package (`-addr=:8080`), to the two that clap
/// knows. Arguments of other subcommands, short flags, numbers and everything after `--` stay as they are.
pub fn with_long_flags(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let of_service = |name: &OsString| SERVICES.iter().any(|service| name == service);
    if !arguments.get(1).is_some_and(of_service) {
        return arguments;
    }
    let flags = arguments.iter_mut().skip(2);
    for argument in flags.take_while(|argument| *argument != "--") {
        let Some(name) = argument.to_str().and_then(|text| text.strip_prefix('-')) else {
            continue;
        };
        let mut letters = name.chars();
        let starts_a_word = letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic());
        if starts_a_word && letters.next().is_some_and(|second| second != '=') {
            *argument = format!("--{name}").into();
        }
    }
    arguments
}

/// `host:port`, or `:port` for every address of both families.
///
/// # Errors
/// Anything else, and a port above 65535.
pub fn listen_address(text: &str) -> Result<SocketAddr> {
    if let Some(port) = text.strip_prefix(':') {
        let port = port
            .parse()
            .with_context(|| format!("\"{text}\" has no port from 0 to 65535"))?;
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    text.parse()
        .with_context(|| format!("\"{text}\" is not ADDRESS:PORT or :PORT"))
}

/// The flags of the log.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Level of the log, or directives such as info,weft_identity=debug.
    #[arg(long, default_value = "info")]
    pub log_level: String,
    /// plain or json.
    #[arg(long, default_value = "plain", value_parser = log_format)]
    pub log_format: log::Format,
}

impl LogArgs {
    /// Starts logging; once in a process.
    ///
    /// # Errors
    /// The directives cannot be read, or logging has started already.
    pub fn start(&self) -> Result<()> {
        // The client of the API server calls each failed connection an error; who asked says what failed, once.
        let directives = format!("kube_client::client::builder=off,{}", self.log_level);
        log::init(&directives, self.log_format).context("cannot start logging (--log-level)")?;
        Ok(())
    }
}

fn log_format(text: &str) -> Result<log::Format> {
    match text {
        "plain" => Ok(log::Format::Plain),
        "json" => Ok(log::Format::Json),
        other => bail!("\"{other}\" is neither plain nor json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_services_get_a_second_dash() {
        let untouched = ["weft", "other", "-addr", "-n", "--", "-x"].map(OsString::from);
        assert_eq!(with_long_flags(untouched.clone()), untouched);
        for service in SERVICES {
            let kept = ["weft", service, "-h", "-5s", "-a=b", "--", "-addr"].map(OsString::from);
            assert_eq!(with_long_flags(kept.clone()), kept);
            let given = ["weft", service, "-addr=:1"].map(OsString::from);
            assert_eq!(with_long_flags(given), ["weft", service, "--addr=:1"]);
        }
    }
}
