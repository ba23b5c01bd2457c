//! Owns certificates for proxies that read files: leaves of the mesh's own authority, the same kind that Weft's proxies get.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use weft_identity::authority::{Issuer, PairFiles, Scheme, Terms};
use weft_identity::roots::TrustRoots;
use weft_identity::{LocalAuthority, csr};

use crate::wiring::Leaf;

/// A bench is over long before.
const LIFETIME: Duration = Duration::from_secs(86_400);

/// Issues a leaf for `name` and writes it into `folder` as `SHORT.crt`, `SHORT.key` and `SHORT.pem`.
pub fn issue(
    authority: &LocalAuthority,
    folder: &Path,
    short: &str,
    name: &str,
) -> anyhow::Result<Leaf> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    let request = csr::check(request.der(), name)?;
    let issuer = issuer(authority).context("the issuer of the bench")?;
    let terms = Terms {
        lifetime: LIFETIME,
        clock_skew: Duration::from_secs(60),
    };
    let signed = issuer.sign(&request, 1 + short.len() as u64, terms, SystemTime::now())?;
    let (certificate, _) = Scheme::Linkerd.files();
    let above = fs::read_to_string(authority.issuer_dir().join(certificate))?;
    let chain = format!(
        "{}{above}",
        pem::encode(&pem::Pem::new("CERTIFICATE", signed.der))
    );
    let key = key.serialize_pem();
    let at = |end: &str| folder.join(format!("{short}.{end}"));
    let leaf = Leaf {
        name: name.to_owned(),
        chain: at("crt"),
        key: at("key"),
        both: at("pem"),
    };
    write(&leaf.chain, &chain)?;
    write(&leaf.key, &key)?;
    write(&leaf.both, &format!("{chain}{key}"))?;
    Ok(leaf)
}

fn issuer(authority: &LocalAuthority) -> anyhow::Result<Issuer> {
    let (certificate, key) = Scheme::Linkerd.files();
    let (certificate_path, key_path) = (
        authority.issuer_dir().join(certificate),
        authority.issuer_dir().join(key),
    );
    let pair = PairFiles {
        certificate: fs::read(&certificate_path)?,
        key: fs::read(&key_path)?,
        certificate_path,
        key_path,
    };
    let roots = TrustRoots::from_pem(authority.trust_anchors_pem().as_bytes())?;
    Ok(Issuer::from_pair(&pair, &roots, SystemTime::now())?)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut file = options
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_of_the_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = LocalAuthority::open(&folder.path().join("trust")).expect("an authority");
        let name = "client.bench.serviceaccount.identity.linkerd.cluster.local";
        let leaf = issue(&authority, folder.path(), "client", name).expect("a leaf");
        let chain = fs::read(&leaf.chain).expect("written");
        assert_eq!(weft_tls::pem::certificates(&chain).expect("PEM").len(), 2);
        KeyPair::from_pem(&fs::read_to_string(&leaf.key).expect("written")).expect("a key");
    }
}
