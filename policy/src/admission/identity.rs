//! Owns the form of identities in authentications (contract 9.6): DNS names, `*` and `*.suffix`, SPIFFE IDs. Does not know
//! who has them.

use weft_core::name::Identity;

/// Says what is wrong with an identity, if anything is.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.contains("://") {
        return check_spiffe(text);
    }
    let name = match text {
        "*" => return Ok(()),
        text => text.strip_prefix("*.").unwrap_or(text),
    };
    if name.contains('*') {
        return Err(format!(
            "{text:?} has a * that is not its whole first label: write *, *.suffix or a whole name"
        ));
    }
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(format!("{text:?} has capital letters, no identity has any"));
    }
    match Identity::parse(name) {
        Ok(_) if !name.ends_with('.') => Ok(()),
        Ok(_) => Err(format!("{text:?} ends in a dot, no identity does")),
        Err(error) => Err(error.to_string()),
    }
}

/// SPIFFE-ID, section 2: `spiffe://trust-domain/path`, without port, query and fragment.
fn check_spiffe(text: &str) -> Result<(), String> {
    const MAX: usize = 2048;
    const MAX_DOMAIN: usize = 255;
    let wrong = |what: &str| Err(format!("{text:?} is not a SPIFFE ID: {what}"));
    if text.len() > MAX {
        return Err(format!(
            "a SPIFFE ID has at most {MAX} bytes, this one has {}",
            text.len()
        ));
    }
    let Some(rest) = text.strip_prefix("spiffe://") else {
        return wrong("it must begin with spiffe://");
    };
    let (domain, path) = match rest.split_once('/') {
        Some((domain, path)) => (domain, Some(path)),
        None => (rest, None),
    };
    let in_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    if domain.is_empty() || domain.len() > MAX_DOMAIN || !domain.bytes().all(in_domain) {
        return wrong("its trust domain must be 1 to 255 of a-z, 0-9, '.', '-' and '_'");
    }
    let in_path = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let bad = |segment: &str| matches!(segment, "" | "." | "..") || !segment.bytes().all(in_path);
    if path.is_some_and(|path| path.split('/').any(bad)) {
        return wrong(
            "each part of its path must be one or more of a-z, A-Z, 0-9, '.', '-' and '_', but not . or ..",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suffixes_and_everybody() {
        for good in [
            "*",
            "*.ns.serviceaccount.identity.linkerd.cluster.local",
            "web.ns.serviceaccount.identity.linkerd.cluster.local",
            "host",
            "spiffe://example.org",
            "spiffe://example.org/ns/web/sa/A_b-1.2",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_no_certificate_has_is_refused() {
        for (bad, reason) in [
            ("", "empty"),
            ("*.", "empty"),
            ("a*b", "whole first label"),
            ("*a", "whole first label"),
            ("*.*", "whole first label"),
            ("a..b", "label"),
            ("a b", "label"),
            ("a.b.", "dot"),
            ("Web.ns", "capital"),
            ("10.0.0.1", "IP address"),
            ("https://example.org", "begin with spiffe"),
            ("SPIFFE://example.org", "begin with spiffe"),
            ("spiffe://", "trust domain"),
            ("spiffe://Example.org/a", "trust domain"),
            ("spiffe://example.org:8443/a", "trust domain"),
            ("spiffe://example.org/", "path"),
            ("spiffe://example.org/a/", "path"),
            ("spiffe://example.org/a//b", "path"),
            ("spiffe://example.org/../b", "path"),
            ("spiffe://example.org/a?b", "path"),
            ("spiffe://example.org/é", "path"),
        ] {
            let said = check(bad).expect_err(bad);
            assert!(said.contains(reason), "{bad}: {said}");
        }
        assert!(check(&format!("spiffe://a/{}", "x".repeat(2048))).is_err());
    }
}
