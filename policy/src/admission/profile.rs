//! Owns what only ServiceProfiles are held to (contract 9.6): no field that nobody knows, because a misspelled one would be
//! silently without effect, and a name that can be a Service's. Their values are checked by the index.

use serde_json::Value;
use weft_cluster::objects::profile::ServiceProfile;

/// RFC 1123, as Kubernetes has it for names with dots.
const NAME_MAX: usize = 253;

pub(super) fn check(given: &Value) -> Result<(), String> {
    let name = given["metadata"]["name"].as_str().unwrap_or_default();
    if !is_subdomain(name) {
        return Err(format!(
            "metadata.name: {name:?} is not the DNS name of a Service, such as web.shop.svc.cluster.local"
        ));
    }
    match unknown_field(given) {
        Some(field) => Err(format!(
            "{field}: there is no such field; is it misspelled?"
        )),
        None => Ok(()),
    }
}

/// The first field of the definition that is not read by anybody. What has not even the right types is reported elsewhere.
fn unknown_field(given: &Value) -> Option<String> {
    let mut unknown = None;
    let read: Result<ServiceProfile, _> = serde_ignored::deserialize(given, |path| {
        let path = path.to_string();
        if path.starts_with("spec.") {
            unknown.get_or_insert(path);
        }
    });
    let path = read.ok().and(unknown)?;
    let mut field = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        match part.parse::<usize>() {
            Ok(index) => field.push_str(&format!("[{index}]")),
            Err(_) if field.is_empty() => field.push_str(part),
            Err(_) => {
                field.push('.');
                field.push_str(part);
            }
        }
    }
    Some(field)
}

fn is_subdomain(name: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let label = |label: &str| {
        let mut bytes = label.bytes();
        edge(bytes.clone().next())
            && edge(bytes.clone().next_back())
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= NAME_MAX && name.split('.').all(label)
}
