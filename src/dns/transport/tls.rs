//! What DNS over TLS (RFC 7858) needs beside DNS over TCP: certificates.

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
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme};

/// The protocol's name in the handshake (ALPN), as IANA has it. A client that offers others only
/// doesn't mean DNS.
const ALPN: &[u8] = b"dot";

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file doesn't hold what it should, in PEM.
    #[error("{}: there is no {what} in PEM: {source}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// The certificate and the key don't belong together, or can't be used.
    #[error("{} can't be used with the private key {}: {source}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: Error,
    },
    /// A certificate can't be one that others are checked by.
    #[error("{}: not a CA's certificate: {source}", file.display())]
    Ca {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Error,
    },
    /// The system has no certificates of CAs.
    #[error("no CA is known here: {0}; install ca-certificates, or name a file by SSL_CERT_FILE")]
    NoRoots(String),
    /// These CAs can't check any client.
    #[error("no client's certificate can be checked: {0}")]
    Verifier(VerifierBuilderError),
    /// The crypto provider has no TLS 1.2 or 1.3: a defect of ours.
    #[error("TLS: {0}")]
    Versions(Error),
}

impl TlsError {
    /// Returns the file that is at fault, if one is.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Pem { file, .. } | Self::Ca { file, .. } => Some(file),
            Self::Pair { certificate, .. } => Some(certificate),
            Self::NoRoots(_) | Self::Verifier(_) | Self::Versions(_) => None,
        }
    }
}

/// A file in PEM that has been read.
#[derive(Clone, Copy, Debug)]
pub struct Pem<'a> {
    /// The file.
    pub file: &'a Path,
    /// What is in it.
    pub bytes: &'a [u8],
}

/// What a server wants from its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nothing.
    #[default]
    None,
    /// Any certificate, if there is one.
    Request,
    /// Any certificate.
    Require,
    /// A certificate of the CA, or none.
    VerifyIfGiven,
    /// A certificate of the CA.
    RequireAndVerify,
}

/// Returns what a server of DNS over TLS needs: its certificate with those between it and its CA, and its key.
/// Where clients are checked, their certificates have to be of `ca`, or of a CA that the system knows.
///
/// TLS 1.2 and 1.3 are spoken (RFC 9325 section 3.1.1).
///
/// # Errors
/// If a file can't be used.
pub fn config(
    certificate: Pem<'_>,
    key: Pem<'_>,
    clients: ClientAuth,
    ca: Option<Pem<'_>>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = chain(certificate)?;
    let secret = PrivateKeyDer::from_pem_slice(key.bytes).map_err(|source| TlsError::Pem {
        file: key.file.to_owned(),
        what: "private key",
        source,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(clients, ca, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, secret)
        .map_err(|source| TlsError::Pair {
            certificate: certificate.file.to_owned(),
            key: key.file.to_owned(),
            source,
        })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Returns the verifier of clients' certificates. A CA has to be valid even where no client is checked.
fn verifier(
    clients: ClientAuth,
    ca: Option<Pem<'_>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let named = ca.map(roots).transpose()?;
    let anybody = |required| {
        let algorithms = provider.signature_verification_algorithms;
        Ok(Arc::new(AnyClientCertificate { required, algorithms }) as Arc<dyn ClientCertVerifier>)
    };
    let optional = match clients {
        ClientAuth::None => return Ok(Arc::new(NoClientAuth)),
        ClientAuth::Request => return anybody(false),
        ClientAuth::Require => return anybody(true),
        ClientAuth::VerifyIfGiven => true,
        ClientAuth::RequireAndVerify => false,
    };
    let roots = named.map_or_else(system_roots, Ok)?;
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(TlsError::Verifier)
}

/// Takes whatever certificate a client has, if only it has the key, too.
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

/// Returns the CAs that the system knows.
pub(crate) fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A system may have certificates that can't be used any more.
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
    let error = |source| TlsError::Pem { file: pem.file.to_owned(), what: "certificate", source };
    certificates(pem.bytes).map_err(error)
}

/// Returns the certificates in a file: at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// A CA, a certificate of it, and its key, in PEM.
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

    /// Whether the server takes a client with such a certificate.
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
            // By TLS 1.3 a client learns only after its handshake that it isn't wanted.
            if let Ok(mut stream) = connector.connect(name, near).await {
                let _ = stream.read(&mut [0]).await;
            }
        };
        let taking = async { TlsAcceptor::from(Arc::clone(server)).accept(far).await.is_ok() };
        tokio::join!(asking, taking).1
    }

    #[tokio::test]
    async fn each_mode_takes_the_clients_that_it_should() {
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
