//! TLS to upstreams: trusted CAs, and the client's certificate.

use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::dns::transport::tls::{ALPN_HTTP2, PemError, TlsError, certificates, system_roots};

/// Returns the CA certificates in a PEM file with this content.
///
/// # Errors
/// If there are none, or a certificate isn't valid.
pub fn root_certificates(pem: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(PemError::Invalid)?;
    }
    Ok(roots)
}

/// Returns the connector for TLS 1.2 and 1.3 to an upstream. The upstream must prove its name with a certificate that
/// a CA in `roots` has issued (`None`: a CA of the system). lb-linker authenticates itself with `identity`, if it is
/// given: a certificate and its key in PEM.
///
/// # Errors
/// If the certificate and the key can't be used, or the system has no CAs.
pub fn connector(
    roots: Option<RootCertStore>,
    identity: Option<(&[u8], &[u8])>,
) -> Result<TlsConnector, ConnectorError> {
    let roots = roots.map_or_else(system_roots, Ok)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate).map_err(ConnectorError::Certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| ConnectorError::Key(PemError::Missing("private key", error)))?;
            let paired = builder.with_client_auth_cert(chain, key);
            paired.map_err(|error| match error {
                rustls::Error::InvalidCertificate(_) => ConnectorError::Certificate(PemError::Invalid(error)),
                error => ConnectorError::Key(PemError::Invalid(error)),
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns a connector for HTTP/2 with the certificates of this one.
#[must_use]
pub fn http2_connector(tls: &TlsConnector) -> TlsConnector {
    let mut config = ClientConfig::clone(tls.config());
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    Arc::new(config).into()
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    #[error("{0}")]
    Certificate(PemError),
    /// The key is invalid, or doesn't match the certificate.
    #[error("{0}")]
    Key(PemError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}
