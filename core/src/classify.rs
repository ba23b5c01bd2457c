//! Whether a response counts as a success or a failure (contract 4.5). Does not decide about retries.

use http::{HeaderMap, StatusCode};

/// gRPC code `UNKNOWN`, which also stands for a missing or unreadable code.
pub const GRPC_UNKNOWN: u16 = 2;

/// The `classification` label of `response_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The response counts as served.
    Success,
    /// The response counts against the success rate and the failure accrual.
    Failure,
}

impl Class {
    /// The value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// Class of an HTTP response: 500 to 599 are failures.
pub fn http(status: StatusCode) -> Class {
    if status.is_server_error() {
        Class::Failure
    } else {
        Class::Success
    }
}

/// Class of a gRPC response by its code; one that ends without a code counts as a success.
pub fn grpc(code: Option<u16>) -> Class {
    match code {
        Some(2 | 4 | 7 | 13 | 14 | 15) => Class::Failure,
        // Codes that gRPC does not define mean UNKNOWN (gRPC core, "Status codes and their use").
        Some(17..) => Class::Failure,
        Some(_) | None => Class::Success,
    }
}

/// The code in `grpc-status` of headers or trailers; an unreadable one is [`GRPC_UNKNOWN`], a missing one `None`.
pub fn grpc_code(headers: &HeaderMap) -> Option<u16> {
    let value = headers.get("grpc-status")?;
    let code = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Some(code.unwrap_or(GRPC_UNKNOWN))
}

/// The upper-snake name of a gRPC code, as the `grpc_status` label has it (contract 6.2).
pub fn grpc_code_name(code: u16) -> &'static str {
    match code {
        0 => "OK",
        1 => "CANCELLED",
        3 => "INVALID_ARGUMENT",
        4 => "DEADLINE_EXCEEDED",
        5 => "NOT_FOUND",
        6 => "ALREADY_EXISTS",
        7 => "PERMISSION_DENIED",
        8 => "RESOURCE_EXHAUSTED",
        9 => "FAILED_PRECONDITION",
        10 => "ABORTED",
        11 => "OUT_OF_RANGE",
        12 => "UNIMPLEMENTED",
        13 => "INTERNAL",
        14 => "UNAVAILABLE",
        15 => "DATA_LOSS",
        16 => "UNAUTHENTICATED",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_failures_are_the_five_hundreds() {
        for status in 100..=999 {
            let class = http(StatusCode::from_u16(status).expect("100 to 999 are valid"));
            let failure = (500..=599).contains(&status);
            assert_eq!(class == Class::Failure, failure, "{status}");
        }
    }

    #[test]
    fn grpc_failures_are_the_listed_codes() {
        let failures: Vec<u16> = (0..=16)
            .filter(|code| grpc(Some(*code)) == Class::Failure)
            .collect();
        assert_eq!(failures, [2, 4, 7, 13, 14, 15]);
        assert_eq!(grpc(None), Class::Success);
        assert_eq!(grpc(Some(99)), Class::Failure);
    }

    #[test]
    fn grpc_code_is_read_from_headers() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", http::HeaderValue::from_static(value));
            grpc_code(&headers)
        };
        assert_eq!(grpc_code(&HeaderMap::new()), None);
        assert_eq!(with("0"), Some(0));
        assert_eq!(with("14"), Some(14));
        assert_eq!(with("unavailable"), Some(GRPC_UNKNOWN));
    }

    #[test]
    fn names_are_upper_snake_and_distinct() {
        let names: std::collections::BTreeSet<_> = (0..=16).map(grpc_code_name).collect();
        assert_eq!(names.len(), 17);
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        );
        assert_eq!(grpc_code_name(GRPC_UNKNOWN), "UNKNOWN");
        assert_eq!(grpc_code_name(17), "UNKNOWN");
    }
}
