//! Certificates out of PEM text as people really write it: comments, blank lines, CRLF, indentation, a byte-order mark. Reads no file
//! and does not look into a certificate.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// More certificates than this in one file is a mistake, and would make each verification slow.
const MAX_CERTIFICATES: usize = 64;
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Why PEM text holds no usable list of certificates. The caller adds the name of the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PemError {
    /// No `BEGIN CERTIFICATE` at all.
    #[error("holds no PEM certificate (no line \"-----BEGIN CERTIFICATE-----\")")]
    Empty,
    /// A section that is not PEM.
    #[error("certificate {index} is not valid PEM: {reason}")]
    Syntax {
        /// Position in the file, from 1.
        index: usize,
        /// What the parser said.
        reason: String,
    },
    /// Sections that run into each other, so that one of them would be lost.
    #[error(
        "{begins} certificates begin but only {parsed} can be read; put each BEGIN and END on a line of its own"
    )]
    Merged {
        /// How often `BEGIN CERTIFICATE` occurs.
        begins: usize,
        /// How many certificates were read.
        parsed: usize,
    },
    /// More certificates than anybody needs.
    #[error("holds more than {MAX_CERTIFICATES} certificates")]
    TooMany,
}

/// All certificates of `text`, in order; at least one. Text between sections and other kinds of section are skipped (case I02).
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let text = String::from_utf8_lossy(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text));
    let text = text
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join("\n")
        .into_bytes();
    let mut found = Vec::new();
    for item in CertificateDer::pem_slice_iter(&text) {
        let index = found.len() + 1;
        if index > MAX_CERTIFICATES {
            return Err(PemError::TooMany);
        }
        found.push(item.map_err(|e| PemError::Syntax {
            index,
            reason: e.to_string(),
        })?);
    }
    let begins = text
        .windows(BEGIN.len())
        .filter(|window| *window == BEGIN)
        .count();
    match found.len() {
        0 if begins == 0 => Err(PemError::Empty),
        parsed if parsed < begins => Err(PemError::Merged { begins, parsed }),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(name: &str) -> String {
        let key = rcgen::KeyPair::generate().expect("key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
        params.self_signed(&key).expect("certificate").pem()
    }

    #[test]
    fn i02_noise_is_skipped() {
        let (a, b) = (pem("a.test"), pem("b.test"));
        let text = format!(
            "\u{feff}# root one\n\n{a}\n\n  subject=CN = b\r\n{}\r\n\n\n",
            b.replace('\n', "\r\n")
        );
        assert_eq!(
            certificates(text.as_bytes())
                .expect("two certificates")
                .len(),
            2
        );
        let bare = a.trim_end();
        assert_eq!(
            certificates(bare.as_bytes())
                .expect("no newline at the end")
                .len(),
            1
        );
    }

    #[test]
    fn nothing_is_lost_silently() {
        let (a, b) = (pem("a.test"), pem("b.test"));
        assert_eq!(certificates(b"# nothing\n"), Err(PemError::Empty));
        let merged = format!("{}{b}", a.trim_end());
        assert!(
            certificates(merged.as_bytes()).is_err(),
            "END and BEGIN on one line"
        );
        let cut = &a[..a.len() / 2];
        assert!(matches!(
            certificates(cut.as_bytes()),
            Err(PemError::Syntax { index: 1, .. })
        ));
    }
}
