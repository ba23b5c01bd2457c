//! Owns filters of routes, checked so that a proxy never gets one it must refuse.

use crate::{
    index::notes::Notes,
    objects::route::{self, Filter},
};

/// A filter.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteFilter {
    /// Changes request headers.
    RequestHeaders(HeaderFilter),
    /// Changes response headers.
    ResponseHeaders(HeaderFilter),
    /// Answers with a redirect.
    Redirect(route::Redirect),
}

/// Changes of headers, with valid names and values.
pub type HeaderFilter = route::HeaderModifier;

/// Reads the filters at `field`, of the given types only.
pub(super) fn read(
    filters: &[Filter],
    types: &[&str],
    field: &str,
    notes: &mut Notes,
) -> Option<Vec<RouteFilter>> {
    let mut read = Vec::with_capacity(filters.len());
    for (index, filter) in filters.iter().enumerate() {
        let field = format!("{field}.filters[{index}]");
        if !types.contains(&filter.kind.as_str()) {
            return notes.refuse(
                &format!("{field}.type"),
                format!("filter {:?} is not supported", filter.kind),
            );
        }
        read.push(match filter.kind.as_str() {
            "RequestHeaderModifier" => RouteFilter::RequestHeaders(read_headers(
                filter.request_header_modifier.as_ref(),
                &field,
                notes,
            )?),
            "ResponseHeaderModifier" => RouteFilter::ResponseHeaders(read_headers(
                filter.response_header_modifier.as_ref(),
                &field,
                notes,
            )?),
            _ => RouteFilter::Redirect(read_redirect(filter, &field, notes)?),
        });
    }
    Some(read)
}

fn read_headers(
    modifier: Option<&HeaderFilter>,
    field: &str,
    notes: &mut Notes,
) -> Option<HeaderFilter> {
    let Some(modifier) = modifier else {
        return notes.refuse(field, "the field of the filter's type is missing");
    };
    let named = modifier
        .set
        .iter()
        .chain(&modifier.add)
        .map(|header| &header.name)
        .chain(&modifier.remove);
    if let Some(name) = named
        .into_iter()
        .find(|name| http::HeaderName::try_from(name.as_str()).is_err())
    {
        return notes.refuse(field, format!("{name:?} is not a header name"));
    }
    let valued = modifier.set.iter().chain(&modifier.add);
    if let Some(header) = valued
        .into_iter()
        .find(|h| http::HeaderValue::try_from(h.value.as_str()).is_err())
    {
        return notes.refuse(
            field,
            format!(
                "header {:?} has a value with characters no header has",
                header.name
            ),
        );
    }
    Some(modifier.clone())
}

fn read_redirect(filter: &Filter, field: &str, notes: &mut Notes) -> Option<route::Redirect> {
    let Some(redirect) = &filter.request_redirect else {
        return notes.refuse(field, "the field of the filter's type is missing");
    };
    if let Some(code) = redirect
        .status_code
        .filter(|code| !(300..400).contains(code))
    {
        return notes.refuse(
            &format!("{field}.requestRedirect.statusCode"),
            format!("{code} is not a redirect"),
        );
    }
    if let Some(scheme) = redirect
        .scheme
        .as_deref()
        .filter(|s| !matches!(*s, "http" | "https"))
    {
        return notes.refuse(
            &format!("{field}.requestRedirect.scheme"),
            format!("{scheme:?} is not http or https"),
        );
    }
    Some(redirect.clone())
}
