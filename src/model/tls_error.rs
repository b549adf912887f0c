//! Clauses about failed TLS connections to servers. "It" is the server.

use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::excerpt::{examples, sentence, value};

const NO_COMMON_VERSION: &str = "it supports neither TLS 1.2 nor TLS 1.3";

/// Returns a clause about an error of rustls that an I/O error has, or about a connection that was closed; `None` for
/// other errors.
#[must_use]
pub fn explain(error: &io::Error) -> Option<String> {
    let mut error = error;
    // hyper-rustls puts the error of tokio-rustls into one of its own, whose `source` skips it.
    while let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        error = inner;
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(of_tls) => Some(clause(of_tls)),
        // The text of rustls links to its documentation.
        None => {
            (error.kind() == io::ErrorKind::UnexpectedEof).then(|| "the connection was closed".to_owned())
        }
    }
}

fn clause(error: &Error) -> String {
    let text = match error {
        Error::InvalidCertificate(error) => return refusal(error),
        Error::AlertReceived(alert) => return of_alert(*alert),
        Error::NoCertificatesPresented => "it sent no certificate",
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "it doesn't speak TLS",
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => NO_COMMON_VERSION,
        error => return sentence(&error.to_string()).to_string(),
    };
    text.to_owned()
}

/// Returns why the server's certificate is refused.
fn refusal(error: &CertificateError) -> String {
    let text = match error {
        CertificateError::UnknownIssuer => "its certificate is signed by an unknown authority",
        CertificateError::BadSignature => {
            "its certificate isn't signed with the key of the authority that it names: another authority of the same \
             name may have signed it"
        }
        CertificateError::BadEncoding => "its certificate can't be decoded",
        CertificateError::Expired => "its certificate has expired",
        CertificateError::ExpiredContext { time, not_after } => {
            return format!(
                "its certificate has expired at {}; the clock of this host says {}",
                date(*not_after),
                date(*time)
            );
        }
        CertificateError::NotValidYet => "its certificate isn't valid yet",
        CertificateError::NotValidYetContext { time, not_before } => {
            return format!(
                "its certificate isn't valid before {}; the clock of this host says {}",
                date(*not_before),
                date(*time)
            );
        }
        CertificateError::NotValidForName => "its certificate isn't valid for its name",
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            return match &**presented {
                [] => format!("its certificate isn't valid for {expected}: it has no subjectAltName"),
                names => {
                    let names = examples(names.iter().map(|name| value(bare_name(name))));
                    format!("its certificate is valid for {names}, and not for {expected}")
                }
            };
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => NOT_FOR_SERVERS,
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its certificate is signed with an algorithm that isn't supported, such as SHA-1"
        }
        CertificateError::Other(error) => return of_other(&error.to_string()),
        error => return of_other(&error.to_string()),
    };
    text.to_owned()
}

/// Returns why an own certificate with its key can't be used.
#[must_use]
pub fn of_own(error: &Error) -> String {
    let text = match error {
        Error::InvalidCertificate(CertificateError::Other(error)) if error.to_string() == VERSION => {
            "the certificate isn't of X.509 version 3: give one of this version, which `openssl x509 -req` makes with \
             -extfile"
        }
        Error::InconsistentKeys(_) => "the key isn't that of the certificate",
        error => return sentence(&error.to_string()).to_string(),
    };
    text.to_owned()
}

/// webpki's name of the error about a certificate of another version than 3.
const VERSION: &str = "UnsupportedCertVersion";
const NOT_FOR_SERVERS: &str =
    "its certificate isn't one for servers: its extended key usage lacks serverAuth";

/// Returns why a certificate is refused for a reason that rustls only has as the name of another library's error.
fn of_other(name: &str) -> String {
    let text = match name {
        "CaUsedAsEndEntity" => {
            "its certificate is that of an authority (CA:TRUE): a server needs one that an authority has signed for it"
        }
        VERSION => {
            "its certificate isn't of X.509 version 3: a server needs one of this version, with its names and addresses in \
             the extension subjectAltName"
        }
        // rustls-platform-verifier's text for any wrong extended key usage.
        "certificate had invalid extensions" => NOT_FOR_SERVERS,
        name => return format!("its certificate is refused: {}", sentence(name)),
    };
    text.to_owned()
}

/// Returns why the server has ended the connection: mostly because of the client certificate.
fn of_alert(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            "it requires a client certificate"
        }
        // Servers in Go also answer so with TLS 1.2 if there is none.
        AlertDescription::BadCertificate => "it refuses the client certificate, or requires one",
        AlertDescription::UnknownCA => {
            "it refuses the client certificate, which is signed by an authority unknown to it"
        }
        AlertDescription::CertificateExpired => {
            "it refuses the client certificate, which has expired or isn't valid yet"
        }
        AlertDescription::CertificateRevoked => "it refuses the client certificate, which is revoked",
        AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => "it refuses the client certificate",
        AlertDescription::ProtocolVersion => NO_COMMON_VERSION,
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "it accepts none of lb-linker's cipher suites, or requires a client certificate"
        }
        AlertDescription::UnrecognisedName => "it has no certificate for the name that it was asked for",
        AlertDescription::NoApplicationProtocol => {
            "it speaks none of the protocols that lb-linker offers (ALPN), such as HTTP/2"
        }
        alert => return format!("it ended the TLS connection: {alert:?}"),
    };
    text.to_owned()
}

fn date(time: UnixTime) -> Timestamp {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// Returns the name in webpki's texts `DnsName("a.example")` and `IpAddress(192.0.2.1)`.
fn bare_name(presented: &str) -> &str {
    let name = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    name.unwrap_or(presented).trim_matches('"')
}

/// A certificate without extensions, as `openssl x509 -req` makes it by default.
#[cfg(test)]
pub(crate) const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBEzCBuQIUDC1AfJ8tS4jT1hcaZ1tskqpZ8TUwCgYIKoZIzj0EAwIwDDEKMAgG
A1UEAwwBeDAeFw0yNjExMzAwNjI4MTVaFw0zNjExMjcwNjI4MTVaMAwxCjAIBgNV
BAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASO2VsinXTTDWBf14qOiPY8
F58rbbHfPp3zT/Iv8iHqv0aW5W5HtVXLlgPSKuBDMykR9mfETddg9po7Xsh3Ddqp
MAoGCCqGSM49BAMCA0kAMEYCIQDHxeHR4bBM9oILlTdroVSl7D5Q/NUK4Kpc1IyV
ra7IJAIhAIxbwHFiWBivWFfNq09bfNWI6HbJjWerGdQ8BpY30kOT
-----END CERTIFICATE-----
";

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        date_time_ymd,
    };
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
    use rustls::{
        ClientConfig, ClientConnection, OtherError, RootCertStore, ServerConfig, ServerConnection,
        StreamOwned,
    };

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;
    type Certified = (CertificateDer<'static>, PrivateKeyDer<'static>);

    fn params(names: &[&str]) -> CertificateParams {
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    fn authority(name: &str) -> Authority {
        let mut params = params(&["server.example"]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn signed(params: &CertificateParams, authority: &Authority) -> Certified {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        (certificate.der().clone(), key.into())
    }

    fn roots(authority: &Authority) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        roots
    }

    /// Returns the error of a client that trusts `trusted`, at a server with this certificate that requires client
    /// certificates of `required`.
    fn error(
        trusted: &Authority,
        (certificate, key): Certified,
        client: Option<Certified>,
        required: Option<&Authority>,
    ) -> Option<io::Error> {
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let server = server.with_safe_default_protocol_versions().unwrap();
        let server = match required {
            None => server.with_no_client_auth(),
            Some(authority) => {
                let roots = Arc::new(roots(authority));
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
                server.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let server = server.with_single_cert(vec![certificate], key).unwrap();
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots(trusted));
        let config = match client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
        };
        let (near, far) = UnixStream::pair().unwrap();
        let serving = thread::spawn(move || {
            let server = ServerConnection::new(Arc::new(server)).unwrap();
            let mut stream = StreamOwned::new(server, far);
            // Fails if the client ends the connection.
            let _ = stream.write_all(b".").and_then(|()| stream.flush());
        });
        let name = "server.example".try_into().unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let error = StreamOwned::new(client, near).read_exact(&mut [0]).err();
        serving.join().unwrap();
        error
    }

    #[test]
    fn refused_certificate_is_explained() {
        let (own, other, namesake) = (authority("own"), authority("other"), authority("own"));
        let key = PrivateKeyDer::try_from(own.key().serialize_der()).unwrap();
        let of_authority = (own.der().clone(), key);
        let valid = params(&["server.example"]);
        let named = |names: &[&str]| signed(&params(names), &own);
        let mut expired = valid.clone();
        expired.not_after = date_time_ymd(2020, 12, 31);
        let mut early = valid.clone();
        early.not_before = date_time_ymd(2999, 1, 2);
        let mut of_client = valid.clone();
        of_client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let many: Vec<String> = (0..50).map(|number| format!("{number}.example")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let valid_for = "its certificate is valid for";
        for (certified, expected) in [
            (signed(&valid, &other), "its certificate is signed by an unknown authority".to_owned()),
            (signed(&valid, &namesake), refusal(&CertificateError::BadSignature)),
            (of_authority, of_other("CaUsedAsEndEntity")),
            (signed(&of_client, &own), NOT_FOR_SERVERS.to_owned()),
            (
                signed(&expired, &own),
                "its certificate has expired at 2020-12-31T00:00:00Z; the clock of this host says 20"
                    .to_owned(),
            ),
            (
                signed(&early, &own),
                "its certificate isn't valid before 2999-01-02T00:00:00Z; the clock of this host says 20"
                    .to_owned(),
            ),
            (
                named(&["*.a.example", "192.0.2.1"]),
                format!("{valid_for} \"*.a.example\", \"192.0.2.1\", and not for server.example"),
            ),
            (
                named(&many),
                format!(
                    "{valid_for} \"0.example\", \"1.example\", \"2.example\" and 47 more, and not for server.example"
                ),
            ),
            (
                named(&[]),
                "its certificate isn't valid for server.example: it has no subjectAltName".to_owned(),
            ),
        ] {
            let error = error(&own, certified, None, None).unwrap();
            let text = explain(&io::Error::other(error)).unwrap();
            assert!(text.starts_with(&expected), "{text}");
        }
    }

    #[test]
    fn refused_client_certificate_is_explained() {
        let (own, other) = (authority("own"), authority("other"));
        let certified = |params: &CertificateParams, authority| signed(params, authority);
        let (server, client) = (params(&["server.example"]), params(&["client.example"]));
        let mut expired = client.clone();
        expired.not_after = date_time_ymd(2020, 12, 31);
        for (client, expected) in [
            (Some(certified(&client, &own)), None),
            (None, Some("it requires a client certificate")),
            (
                Some(certified(&client, &other)),
                Some("it refuses the client certificate, which is signed by an authority unknown to it"),
            ),
            (
                Some(certified(&expired, &own)),
                Some("it refuses the client certificate, which has expired or isn't valid yet"),
            ),
        ] {
            let error = error(&own, certified(&server, &own), client, Some(&own));
            assert_eq!(error.and_then(|error| explain(&error)).as_deref(), expected);
        }
    }

    #[test]
    fn server_without_tls_is_named() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let client = ClientConnection::new(Arc::new(config), "server.example".try_into().unwrap()).unwrap();
        let error = StreamOwned::new(client, near).read(&mut [0]).unwrap_err();
        assert_eq!(explain(&error).as_deref(), Some("it doesn't speak TLS"));
    }

    #[test]
    fn unknown_reasons_are_named_without_structs_or_links() {
        let of_library = |text: &str| {
            let error = OtherError(Arc::new(io::Error::other(text.to_owned())));
            let error = Error::InvalidCertificate(CertificateError::Other(error));
            explain(&io::Error::new(io::ErrorKind::InvalidData, error)).unwrap()
        };
        let refused = "its certificate is refused:";
        assert_eq!(of_library("NameConstraintViolation"), format!("{refused} NameConstraintViolation"));
        assert_eq!(of_library("a\n\u{1b}b"), format!("{refused} a\\n\\u{{1b}}b"));
        let certificate = CertificateDer::from_pem_slice(VERSION_1.as_bytes()).unwrap();
        let error = ParsedCertificate::try_from(&certificate).err().unwrap();
        assert!(of_own(&error).starts_with("the certificate isn't of X.509 version 3: give one"), "{error}");
        let version = explain(&io::Error::other(error)).unwrap();
        assert!(
            version.starts_with("its certificate isn't of X.509 version 3: a server needs one"),
            "{version}"
        );
        let closed = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, closed);
        assert_eq!(explain(&closed).as_deref(), Some("the connection was closed"));
        assert_eq!(explain(&io::Error::other("busy")), None);
        let alert = Error::AlertReceived(AlertDescription::InternalError);
        assert_eq!(clause(&alert), "it ended the TLS connection: InternalError");
    }
}
