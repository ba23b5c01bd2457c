//! Owns `Labels`: a label set that is made once and shared. Does not know which families use it.

use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use weft_core::name::Identity;
use weft_runtime::metrics::Text;

/// One label: its name and its value, which may come from anywhere.
pub type Label = (Cow<'static, str>, Text);

/// An ordered list of labels, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Labels(Arc<[Label]>);

impl Labels {
    /// Starts a list.
    pub fn build() -> LabelsBuilder {
        LabelsBuilder(Vec::with_capacity(16))
    }

    /// The labels in order.
    pub fn iter(&self) -> impl Iterator<Item = &Label> {
        self.0.iter()
    }
}

/// Collects labels in the order in which they are printed.
pub struct LabelsBuilder(Vec<Label>);

impl LabelsBuilder {
    /// Adds a label with a name known when the program was written.
    pub fn with(mut self, name: &'static str, value: impl Into<Text>) -> Self {
        self.0.push((Cow::Borrowed(name), value.into()));
        self
    }

    /// Adds a label whose name comes from the control plane; characters that a label name
    /// cannot hold become `_`.
    pub fn with_dynamic(mut self, prefix: &str, name: &str, value: &str) -> Self {
        let name: String = prefix
            .chars()
            .chain(name.chars())
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        self.0.push((Cow::Owned(name), value.into()));
        self
    }

    /// Adds `target_addr`, `target_ip` and `target_port`.
    pub fn target(self, addr: SocketAddr) -> Self {
        self.with("target_addr", addr.to_string())
            .with("target_ip", addr.ip().to_string())
            .with("target_port", addr.port().to_string())
    }

    /// Adds the labels of `other`.
    pub fn all(mut self, other: &Labels) -> Self {
        self.0.extend(other.iter().cloned());
        self
    }

    /// Adds the TLS part for a connection from a client (contract 6.1).
    pub fn client_tls(self, tls: &TlsStatus) -> Self {
        self.tls("client_id", tls)
    }

    /// Adds the TLS part for a connection to a server (contract 6.1).
    pub fn server_tls(self, tls: &TlsStatus) -> Self {
        self.tls("server_id", tls)
    }

    fn tls(self, id_label: &'static str, tls: &TlsStatus) -> Self {
        match tls {
            TlsStatus::Mesh(Some(id)) => self.with("tls", "true").with(id_label, id.as_str()),
            TlsStatus::Mesh(None) => self.with("tls", "true").with(id_label, ""),
            TlsStatus::None(reason) => self
                .with("tls", "no_identity")
                .with("no_tls_reason", reason.as_str()),
            TlsStatus::Opaque(sni) => self.with("tls", "opaque").with("sni", sni.clone()),
        }
    }

    /// Ends the list.
    pub fn done(self) -> Labels {
        Labels(self.0.into())
    }
}

/// Whether and how a connection is secured by the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TlsStatus {
    /// Mesh TLS; the peer's identity if it presented one.
    Mesh(Option<Identity>),
    /// Plain, and why.
    None(NoTlsReason),
    /// TLS that belongs to the application, passed through untouched.
    Opaque(Arc<str>),
}

impl TlsStatus {
    /// The verified identity of the peer.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Mesh(id) => id.as_ref(),
            _ => None,
        }
    }
}

/// Why a connection carries no mesh TLS (contract 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoTlsReason {
    /// The peer is this machine's loopback, or the application itself.
    Loopback,
    /// Policy says that the port is opaque: no detection was made.
    PortSkipped,
    /// The client sent no ClientHello, or one without a server name.
    NotFromRemote,
    /// The endpoint has no identity.
    NotProvided,
}

impl NoTlsReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::PortSkipped => "port_skipped",
            Self::NotFromRemote => "no_tls_from_remote",
            Self::NotProvided => "not_provided_by_service_discovery",
        }
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, value) in self.0.iter() {
            (name.as_ref(), value.clone()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// A shared label set and a few that belong to one series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct With<const N: usize> {
    /// The shared part.
    pub base: Labels,
    /// The rest, in order.
    pub more: [(&'static str, Cow<'static, str>); N],
}

impl<const N: usize> EncodeLabelSet for With<N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.base.encode(encoder)?;
        for (name, value) in &self.more {
            (*name, value.as_ref()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_name_from_discovery_is_made_legal() {
        let labels = Labels::build()
            .with_dynamic("dst_", "pod-template.hash", "abc")
            .done();
        assert_eq!(
            labels.iter().next(),
            Some(&(Cow::Borrowed("dst_pod_template_hash"), Text::from("abc")))
        );
    }
}
