//! The TLS configuration of servers: of DNS over TLS (RFC 7858), HTTPS (RFC 8484), gRPC and QUIC (RFC 9250), and of
//! `/metrics`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    DEFAULT_VERSIONS, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};
use serde::Deserialize;
use tokio_rustls::TlsAcceptor;

use crate::model::tls_error::of_own;

/// The ALPN identifier of DNS over TLS, as registered at IANA. A client that offers only other protocols isn't a DNS
/// client.
const ALPN: &[u8] = b"dot";
/// The ALPN identifiers of HTTP/2 and HTTP/1.1.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The ALPN identifier of DNS over QUIC (RFC 9250 section 4.1.1).
const ALPN_QUIC: &[u8] = b"doq";

/// Why a file in PEM can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("there is no {0} in PEM: {1}")]
    Missing(&'static str, pem::Error),
    #[error("it has a private key and no certificate: the file of the certificate belongs here")]
    OnlyKey,
    #[error("{}", of_own(.0))]
    Invalid(Error),
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file doesn't contain the expected PEM data.
    #[error("{}: {source}", file.display())]
    Pem { file: PathBuf, source: PemError },
    /// The certificate and the key don't match, or can't be used.
    #[error("{} can't be used with the private key {}: {}", certificate.display(), key.display(), of_own(source))]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        key: PathBuf,
        source: Error,
    },
    /// A certificate can't be used as a CA's certificate.
    #[error("{}: not a CA's certificate: {source}", file.display())]
    Ca {
        /// The file of the certificate.
        file: PathBuf,
        source: Error,
    },
    /// The system has no certificates of CAs.
    #[error("no CA is known here: {0}; install ca-certificates, or name a file by SSL_CERT_FILE")]
    NoRoots(String),
    /// No client could be verified with these CAs.
    #[error("no client's certificate can be checked: {0}")]
    Verifier(VerifierBuilderError),
    /// No TLS version can be used with these cipher suites.
    #[error("TLS: {0}")]
    Versions(Error),
}

impl TlsError {
    /// Returns the file that caused the error, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Pem { file, .. } | Self::Ca { file, .. } => Some(file),
            Self::Pair { certificate, .. } => Some(certificate),
            Self::NoRoots(_) | Self::Verifier(_) | Self::Versions(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pem<'a> {
    pub file: &'a Path,
    pub bytes: &'a [u8],
}

/// The certificates that a server requires of its clients. Deserialized from the names of Go's `ClientAuthType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    #[default]
    #[serde(rename = "NoClientCert")]
    None,
    /// Any certificate, optionally.
    #[serde(rename = "RequestClientCert")]
    Request,
    /// Any certificate.
    #[serde(rename = "RequireAnyClientCert", alias = "RequireClientCert")]
    Require,
    /// A certificate of the CA, optionally.
    #[serde(rename = "VerifyClientCertIfGiven")]
    VerifyIfGiven,
    /// A certificate of the CA.
    #[serde(rename = "RequireAndVerifyClientCert")]
    RequireAndVerify,
}

/// Returns the configuration of a server for DNS over TLS, with TLS 1.2 and 1.3 (RFC 9325 section 3.1.1).
/// The arguments are those of `server_config`.
///
/// # Errors
/// If a file can't be used.
pub fn config(
    certificate: Pem<'_>,
    key: Pem<'_>,
    clients: ClientAuth,
    ca: Option<Pem<'_>>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = rustls::crypto::ring::default_provider();
    let mut config = server_config(certificate, key, clients, ca, provider, DEFAULT_VERSIONS)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Returns an acceptor for DNS over HTTPS with the certificate of one for DNS over TLS.
#[must_use]
pub fn https_acceptor(tls: &TlsAcceptor) -> TlsAcceptor {
    with_alpn(tls, &[ALPN_HTTP2, ALPN_HTTP1])
}

/// Returns an acceptor for DNS over gRPC with the certificate of one for DNS over TLS.
#[must_use]
pub fn grpc_acceptor(tls: &TlsAcceptor) -> TlsAcceptor {
    with_alpn(tls, &[ALPN_HTTP2])
}

/// Returns an acceptor for DNS over QUIC with the certificate of one for DNS over TLS.
#[must_use]
pub fn quic_acceptor(tls: &TlsAcceptor) -> TlsAcceptor {
    with_alpn(tls, &[ALPN_QUIC])
}

fn with_alpn(tls: &TlsAcceptor, protocols: &[&[u8]]) -> TlsAcceptor {
    let mut config = ServerConfig::clone(tls.config());
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config).into()
}

/// Returns the configuration of a TLS server. `certificate` contains the certificate, followed by the intermediate
/// certificates. If clients are verified, their certificates must be issued by `ca`; without `ca`, by a CA of the
/// system.
///
/// # Errors
/// If a file can't be used.
pub(crate) fn server_config(
    certificate: Pem<'_>,
    key: Pem<'_>,
    clients: ClientAuth,
    ca: Option<Pem<'_>>,
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ServerConfig, TlsError> {
    let chain = chain(certificate)?;
    let secret = PrivateKeyDer::from_pem_slice(key.bytes).map_err(|source| TlsError::Pem {
        file: key.file.to_owned(),
        source: PemError::Missing("private key", source),
    })?;
    let provider = Arc::new(provider);
    let verifier = verifier(clients, ca, &provider)?;
    ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(TlsError::Versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, secret)
        .map_err(|source| TlsError::Pair {
            certificate: certificate.file.to_owned(),
            key: key.file.to_owned(),
            source,
        })
}

/// Returns the verifier of clients' certificates. An invalid `ca` is an error even if clients aren't verified.
fn verifier(
    clients: ClientAuth,
    ca: Option<Pem<'_>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let named = ca.map(roots).transpose()?;
    let any_certificate = |required| {
        let algorithms = provider.signature_verification_algorithms;
        Ok(Arc::new(AnyClientCertificate { required, algorithms }) as Arc<dyn ClientCertVerifier>)
    };
    let optional = match clients {
        ClientAuth::None => return Ok(Arc::new(NoClientAuth)),
        ClientAuth::Request => return any_certificate(false),
        ClientAuth::Require => return any_certificate(true),
        ClientAuth::VerifyIfGiven => true,
        ClientAuth::RequireAndVerify => false,
    };
    let roots = named.map_or_else(system_roots, Ok)?;
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(TlsError::Verifier)
}

/// Accepts any certificate of a client that proves possession of the key.
#[derive(Debug)]
struct AnyClientCertificate {
    required: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

pub(crate) fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // The system may have certificates that can't be parsed.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(TlsError::NoRoots(why));
    }
    Ok(roots)
}

fn roots(pem: Pem<'_>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(pem)? {
        roots.add(certificate).map_err(|source| TlsError::Ca { file: pem.file.to_owned(), source })?;
    }
    Ok(roots)
}

fn chain(pem: Pem<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates(pem.bytes).map_err(|source| TlsError::Pem { file: pem.file.to_owned(), source })
}

/// Returns the certificates in PEM data.
///
/// # Errors
/// If there is no certificate, or a certificate can't be read.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let missing = |error| PemError::Missing("certificate", error);
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(missing)?;
    match all.is_empty() {
        true if PrivateKeyDer::from_pem_slice(pem).is_ok() => Err(PemError::OnlyKey),
        true => Err(missing(pem::Error::NoItemsFound)),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, duplex};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// Returns a CA's certificate, a certificate that it issued, and that certificate's key, in PEM.
    fn certified() -> [String; 3] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["dns.example".to_owned()]).unwrap();
        [ca, params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem()]
    }

    fn pem(bytes: &str) -> Pem<'_> {
        Pem { file: Path::new("file.pem"), bytes: bytes.as_bytes() }
    }

    /// Returns whether the server accepts a client with this certificate.
    async fn takes(server: &Arc<ServerConfig>, ca: &str, client: Option<&[String; 3]>) -> bool {
        let builder = ClientConfig::builder_with_provider(Arc::clone(server.crypto_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(pem(ca)).unwrap());
        let config = match client {
            None => builder.with_no_client_auth(),
            Some([_, certificate, key]) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain(pem(certificate)).unwrap(), key).unwrap()
            }
        };
        let (near, far) = duplex(1 << 16);
        let asking = async {
            let name = ServerName::try_from("dns.example").unwrap();
            let connector = TlsConnector::from(Arc::new(config));
            // With TLS 1.3 a client learns only after the handshake that it is rejected.
            if let Ok(mut stream) = connector.connect(name, near).await {
                let _ = stream.read(&mut [0]).await;
            }
        };
        let taking = async { TlsAcceptor::from(Arc::clone(server)).accept(far).await.is_ok() };
        tokio::join!(asking, taking).1
    }

    #[tokio::test]
    async fn each_client_auth_mode_accepts_the_expected_clients() {
        let (own, other) = (certified(), certified());
        let [ca, certificate, key] = &own;
        for (mode, expected) in [
            (ClientAuth::None, [true, true, true]),
            (ClientAuth::Request, [true, true, true]),
            (ClientAuth::Require, [false, true, true]),
            (ClientAuth::VerifyIfGiven, [true, true, false]),
            (ClientAuth::RequireAndVerify, [false, true, false]),
        ] {
            let server = config(pem(certificate), pem(key), mode, Some(pem(ca))).unwrap();
            let mut taken = Vec::new();
            for client in [None, Some(&own), Some(&other)] {
                taken.push(takes(&server, ca, client).await);
            }
            assert_eq!(taken, expected, "{mode:?}");
        }
    }
}
