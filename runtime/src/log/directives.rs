//! Translating log directives written for linkerd2-proxy to our own targets.
//! It does not check them: the filter does.

/// Targets of linkerd2-proxy and ours of the same task. A target covers everything that starts with it, so the more
/// special names come first.
const TARGETS: [(&str, &str); 7] = [
    ("linkerd_app_inbound", "weft_proxy::inbound"),
    ("linkerd_app_outbound", "weft_proxy::outbound"),
    ("linkerd_app", "weft_proxy"),
    ("linkerd2_proxy", "weft_proxy"),
    ("linkerd_meshtls", "weft_tls"),
    ("linkerd_tls", "weft_tls"),
    ("linkerd", "weft"),
];

/// `text` with a directive for our target after each one for a target of linkerd2-proxy; one that is written out for
/// our target wins.
pub(super) fn with_own_targets(text: &str) -> String {
    let given: Vec<&str> = split(text).collect();
    let mut all = Vec::new();
    for directive in &given {
        all.push((*directive).to_owned());
        if let Some(own) = translate(directive)
            && !given
                .iter()
                .any(|other| target(other) == target(&own) && selector(other) == selector(&own))
        {
            all.push(own);
        }
    }
    all.join(",")
}

/// The parts between commas that are not inside a span's brackets or a field list's braces.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn translate(directive: &str) -> Option<String> {
    let name = target(directive);
    let own = TARGETS.iter().find(|(theirs, _)| *theirs == name)?.1;
    directive
        .strip_prefix(name)
        .map(|rest| format!("{own}{rest}"))
}

/// `linkerd` of `linkerd[span]=info`.
fn target(directive: &str) -> &str {
    let end = directive.find(['=', '[']).unwrap_or(directive.len());
    directive.get(..end).unwrap_or(directive)
}

/// `linkerd[span]` of `linkerd[span]=info`.
fn selector(directive: &str) -> &str {
    let (before, rest) = directive.split_at(directive.rfind(']').map_or(0, |at| at + 1));
    let end = before.len() + rest.find('=').unwrap_or(rest.len());
    directive.get(..end).unwrap_or(directive)
}

#[cfg(test)]
mod tests {
    use super::with_own_targets;

    #[test]
    fn targets_of_the_other_proxy_switch_on_ours() {
        let cases = [
            (
                "warn,linkerd=info,hickory=error",
                "warn,linkerd=info,weft=info,hickory=error",
            ),
            (
                "linkerd2_proxy=trace",
                "linkerd2_proxy=trace,weft_proxy=trace",
            ),
            (
                "linkerd_app_outbound=debug",
                "linkerd_app_outbound=debug,weft_proxy::outbound=debug",
            ),
            ("linkerd=info,weft=debug", "linkerd=info,weft=debug"),
            ("linkerd[{a,b}]=off", "linkerd[{a,b}]=off,weft[{a,b}]=off"),
            (
                "linkerd[x]=off,weft=info",
                "linkerd[x]=off,weft[x]=off,weft=info",
            ),
            (
                "[{headers}]=off,[{request}]=off",
                "[{headers}]=off,[{request}]=off",
            ),
            ("linkerd_other=info", "linkerd_other=info"),
            ("linkerd", "linkerd,weft"),
            (" off , ", "off"),
            ("", ""),
        ];
        for (given, expected) in cases {
            assert_eq!(with_own_targets(given), expected, "for {given:?}");
        }
    }
}
