//! Owns the making of a certificate with an authority of its own, and the judgement whether one is still good. Stores nothing.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use weft_runtime::admission::Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

/// Linkerd's checks warn 60 days before the end; it is renewed long before that.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
const RENEW_BEFORE: Duration = Duration::from_secs(120 * 24 * 3600);
/// For clocks that differ.
const BACKDATED: Duration = Duration::from_secs(3600);

/// A certificate and what trusts it; all PEM.
#[derive(Clone)]
pub(super) struct Pair {
    /// The authority that signed it, then the one before, so that its certificate still works.
    pub authorities: Vec<u8>,
    /// The certificate.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

impl Pair {
    /// A new certificate for `host`. Its authority signs nothing else: the authority's key is forgotten here.
    ///
    /// # Errors
    /// The cryptography failed.
    pub fn new(host: &str, old: Option<&Self>, now: SystemTime) -> Result<Self, String> {
        make(host, old, now).map_err(|e| format!("cannot make a certificate for {host}: {e}"))
    }

    /// Whether who trusts its authorities also trusts the certificate of `other`.
    pub fn announces(&self, other: &Self) -> bool {
        let authority = pems(&other.authorities).next();
        authority.is_some_and(|theirs| {
            pems(&self.authorities).any(|ours| ours.contents == theirs.contents)
        })
    }

    /// Whether it belongs together, is for `host`, is signed by its authority and is not about to end.
    pub fn is_good(&self, host: &str, now: SystemTime) -> bool {
        let Some(authority) = pems(&self.authorities).next() else {
            return false;
        };
        let Some(leaf) = pems(&self.certificate).next() else {
            return false;
        };
        let (Ok(authority), Ok(leaf)) = (authority.parse_x509(), leaf.parse_x509()) else {
            return false;
        };
        let names = leaf.subject_alternative_name().ok().flatten();
        let for_host = names.is_some_and(|names| {
            let mut names = names.value.general_names.iter();
            names.any(|name| matches!(name, GeneralName::DNSName(name) if *name == host))
        });
        let seconds = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| {
                i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
            })
        };
        let validity = leaf.validity();
        let in_time = validity.not_before.timestamp() <= seconds(now)
            && seconds(now + RENEW_BEFORE) < validity.not_after.timestamp();
        let signed = leaf.verify_signature(Some(authority.public_key())).is_ok();
        let matches = Certificate::new()
            .install(&self.certificate, &self.key)
            .is_ok();
        for_host && in_time && signed && matches
    }
}

fn make(host: &str, old: Option<&Pair>, now: SystemTime) -> Result<Pair, rcgen::Error> {
    let name = |params: &mut CertificateParams, name: &str| {
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now + LIFETIME).into();
    };
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    name(&mut authority, &format!("{host} authority"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let signed = authority.self_signed(&authority_key)?;
    let issuer = Issuer::from_params(&authority, &authority_key);
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![host.to_owned()])?;
    name(&mut leaf, host);
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&key, &issuer)?;
    let mut authorities = signed.pem();
    // One before is enough: replicas that are two certificates behind have been away for months.
    let before = old.and_then(|old| pems(&old.authorities).next());
    if let Some(before) = before {
        authorities.push_str(&pem::encode(&pem::Pem::new("CERTIFICATE", before.contents)));
    }
    Ok(Pair {
        authorities: authorities.into_bytes(),
        certificate: leaf.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    })
}

/// The certificates of a PEM text, as far as it can be read.
fn pems(text: &[u8]) -> impl Iterator<Item = Pem> {
    Pem::iter_from_buffer(text)
        .map_while(Result::ok)
        .filter(|pem| pem.label == "CERTIFICATE")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "linkerd-proxy-injector.linkerd.svc";
    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn good_until_120_days_before_its_end() {
        let now = SystemTime::now();
        let pair = Pair::new(HOST, None, now).unwrap();
        assert!(pair.is_good(HOST, now));
        assert!(pair.is_good(HOST, now + 244 * DAY));
        assert!(!pair.is_good(HOST, now + 246 * DAY));
        assert!(!pair.is_good(HOST, now - DAY));
        assert!(!pair.is_good("other.linkerd.svc", now));
    }

    #[test]
    fn pairs_that_do_not_belong_together_are_not_good() {
        let now = SystemTime::now();
        let one = Pair::new(HOST, None, now).unwrap();
        let other = Pair::new(HOST, None, now).unwrap();
        let mixed = [
            Pair {
                key: other.key.clone(),
                ..one.clone()
            },
            Pair {
                authorities: other.authorities.clone(),
                ..one.clone()
            },
            Pair {
                certificate: b"nothing".to_vec(),
                ..one.clone()
            },
            Pair {
                authorities: Vec::new(),
                ..one.clone()
            },
        ];
        assert!(mixed.iter().all(|pair| !pair.is_good(HOST, now)));
    }

    #[test]
    fn only_the_pair_before_is_announced_too() {
        let now = SystemTime::now();
        let first = Pair::new(HOST, None, now).unwrap();
        let second = Pair::new(HOST, Some(&first), now).unwrap();
        let third = Pair::new(HOST, Some(&second), now).unwrap();
        assert!(second.announces(&first) && third.announces(&second));
        assert!(!third.announces(&first) && !first.announces(&second));
        let empty = Pair {
            authorities: Vec::new(),
            ..first
        };
        assert!(!second.announces(&empty));
    }

    #[test]
    fn the_authority_before_is_kept_once() {
        let now = SystemTime::now();
        let first = Pair::new(HOST, None, now).unwrap();
        let second = Pair::new(HOST, Some(&first), now).unwrap();
        let third = Pair::new(HOST, Some(&second), now).unwrap();
        assert_eq!(pems(&second.authorities).count(), 2);
        assert_eq!(pems(&third.authorities).count(), 2);
        assert_eq!(
            pems(&third.authorities).nth(1).unwrap().contents,
            pems(&second.authorities).next().unwrap().contents
        );
        assert!(third.is_good(HOST, now));
    }
}
