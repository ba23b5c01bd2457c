//! Owns the settings of who this proxy is and how it gets its certificate.
//! Does not read the key, the request or the token: it only knows where they are.

use super::control::ControlAddr;
use super::reader::Reader;
use super::serial;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weft_core::name::Identity;
use weft_tls::TrustAnchors;

/// Who this proxy is (contract 2).
#[derive(Clone, Debug, Serialize)]
pub struct LocalIdentity {
    /// The name in the certificate: `IDENTITY_SERVER_ID`, or `IDENTITY_LOCAL_NAME`.
    pub id: Identity,
    /// The name clients ask for (SNI), and the one to ask a certificate for: `IDENTITY_SERVER_NAME`, or
    /// `IDENTITY_LOCAL_NAME`.
    pub server_name: Arc<str>,
    /// `IDENTITY_DIR`: where `key.p8` and `csr.der` are, or are made.
    pub dir: PathBuf,
    /// `IDENTITY_TRUST_ANCHORS`: PEM text, which has been checked.
    pub trust_anchors: String,
    /// `IDENTITY_TOKEN_FILE`: read again before each request.
    pub token_file: PathBuf,
    /// `IDENTITY_SVC_{ADDR,NAME}`.
    pub service: ControlAddr,
    /// `IDENTITY_MIN_REFRESH`.
    #[serde(serialize_with = "serial::duration")]
    pub min_refresh: Duration,
    /// `IDENTITY_MAX_REFRESH`.
    #[serde(serialize_with = "serial::duration")]
    pub max_refresh: Duration,
}

impl LocalIdentity {
    pub(super) fn read(r: &mut Reader<'_>) -> Option<Self> {
        if r.text("IDENTITY_DISABLED")
            .is_some_and(|text| !text.is_empty())
        {
            let reason = "a proxy without identity is not supported";
            r.refuse("IDENTITY_DISABLED", reason, "unset it");
        }
        let spire = read_spire(r);
        let (min_refresh, max_refresh) = read_refresh(r);
        if spire && r.text("IDENTITY_TOKEN_FILE").is_none() {
            return None;
        }
        let names = read_names(r);
        let dir = r.required("IDENTITY_DIR", "the directory of key.p8 and csr.der", path);
        let anchors = "IDENTITY_TRUST_ANCHORS";
        let trust_anchors = r.required(anchors, "the PEM text of the trust anchors", |text| {
            TrustAnchors::from_pem(text).map(|_| text.to_owned())
        });
        let token_file = r.required("IDENTITY_TOKEN_FILE", "the file of the token", path);
        let service = ControlAddr::read(r, "IDENTITY_SVC");
        let (id, server_name) = names?;
        Some(Self {
            id,
            server_name,
            dir: dir?,
            trust_anchors: trust_anchors?,
            token_file: token_file?,
            service: service?,
            min_refresh,
            max_refresh,
        })
    }
}

/// The id and the server name. The pair is the newer form, and can say what the single name cannot, so it wins.
fn read_names(r: &mut Reader<'_>) -> Option<(Identity, Arc<str>)> {
    let local = r.non_empty("IDENTITY_LOCAL_NAME", dns_identity);
    let id = r.non_empty("IDENTITY_SERVER_ID", Identity::parse);
    let name = r.non_empty("IDENTITY_SERVER_NAME", dns_identity);
    let given = |r: &mut Reader<'_>, name| r.text(name).is_some_and(|text| !text.is_empty());
    let pair = (
        given(r, "IDENTITY_SERVER_ID"),
        given(r, "IDENTITY_SERVER_NAME"),
    );
    match pair {
        (true, true) => id.zip(name.map(|name| Arc::from(name.as_str()))),
        (false, false) if given(r, "IDENTITY_LOCAL_NAME") => {
            local.map(|local| (local.clone(), Arc::from(local.as_str())))
        }
        (false, false) => {
            r.missing("IDENTITY_LOCAL_NAME", "the name of this workload");
            None
        }
        (true, false) => {
            r.missing(
                "IDENTITY_SERVER_NAME",
                "IDENTITY_SERVER_ID comes only with it",
            );
            None
        }
        (false, true) => {
            r.missing(
                "IDENTITY_SERVER_ID",
                "IDENTITY_SERVER_NAME comes only with it",
            );
            None
        }
    }
}

/// Whether certificates are to come from SPIRE, which this version cannot do: an error unless the other way is set up
/// too.
fn read_spire(r: &mut Reader<'_>) -> bool {
    let names = [
        "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
        "IDENTITY_SPIRE_SOCKET",
    ];
    let Some(name) = names
        .into_iter()
        .find(|name| r.text(name).is_some_and(|text| !text.is_empty()))
    else {
        return false;
    };
    r.later(name);
    if r.text("IDENTITY_TOKEN_FILE").is_none() {
        let reason = "this version cannot get its certificate from SPIRE";
        r.refuse(
            name,
            reason,
            "unset it, and set IDENTITY_DIR, _TRUST_ANCHORS, _TOKEN_FILE and _SVC_ADDR",
        );
    }
    true
}

fn read_refresh(r: &mut Reader<'_>) -> (Duration, Duration) {
    let min = r.duration_or("IDENTITY_MIN_REFRESH", Duration::from_secs(10));
    let max = r.duration_or("IDENTITY_MAX_REFRESH", Duration::from_secs(24 * 60 * 60));
    if min > max {
        let reason = format!("it is longer than the longest refresh, {max:?}");
        r.refuse(
            "IDENTITY_MIN_REFRESH",
            &reason,
            "shorten it, or raise IDENTITY_MAX_REFRESH",
        );
    }
    (min, max)
}

fn dns_identity(text: &str) -> Result<Identity, String> {
    match Identity::parse(text) {
        Ok(Identity::Uri(_)) => {
            Err("expected a DNS name: a URI cannot be asked for by SNI".to_owned())
        }
        other => other.map_err(|e| e.to_string()),
    }
}

fn path(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() {
        Err("expected a path")
    } else {
        Ok(PathBuf::from(text))
    }
}
