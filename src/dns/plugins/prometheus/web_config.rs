//! The file of the option `tls`: a web configuration of Prometheus, as its exporter-toolkit reads it for CoreDNS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::{default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::dns::corefile::{CorefileError, Token};
use crate::dns::plugins::setup::{HttpTls, Setup};
use crate::dns::transport::tls::{ClientAuth, Pem, server_config};
use crate::model::excerpt::located;

const ALPN: &[u8] = b"http/1.1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some keys only have to be valid")]
struct WebConfig {
    tls_server_config: Option<TlsServerConfig>,
    http_server_config: Option<HttpServerConfig>,
    rate_limit: Option<Unsupported>,
    basic_auth_users: Option<Unsupported>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "`client_allowed_sans` only has to be valid")]
struct TlsServerConfig {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    client_ca_file: Option<String>,
    client_auth_type: Option<ClientAuth>,
    client_allowed_sans: Option<Unsupported>,
    min_version: Option<Version>,
    max_version: Option<Version>,
    cipher_suites: Option<Vec<String>>,
    curve_preferences: Option<Vec<Curve>>,
    prefer_server_cipher_suites: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the keys only have to be valid")]
struct HttpServerConfig {
    http2: Option<bool>,
    headers: Option<Unsupported>,
}

/// The value of a key that lb-linker doesn't support.
struct Unsupported;

impl<'de> Deserialize<'de> for Unsupported {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("CoreDNS supports this option, lb-linker doesn't"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Version {
    Tls12,
    Tls13,
}

#[derive(Clone, Copy, Deserialize)]
enum Curve {
    X25519,
    CurveP256,
    CurveP384,
}

impl Curve {
    fn group(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::X25519 => kx_group::X25519,
            Self::CurveP256 => kx_group::SECP256R1,
            Self::CurveP384 => kx_group::SECP384R1,
        }
    }
}

/// Returns the TLS configuration in the file that `word` names; `None`, with a warning, if the file has none.
pub(super) fn read(setup: &mut Setup<'_>, word: &Token) -> Result<Option<HttpTls>, CorefileError> {
    let file = PathBuf::from(&word.text);
    let place = file.display();
    let known = setup.builder.files_read.len();
    let text = setup.read_named(word, &file)?;
    let web: Option<WebConfig> =
        serde_saphyr::from_slice(&text).map_err(|error| word.error(located(&place.to_string(), &error)))?;
    let tls = web.and_then(|web| web.tls_server_config).unwrap_or_default();
    let error = |message: &str| word.error(format!("{place}: {message}"));
    // As in CoreDNS, a file takes precedence over the text of the same object.
    let mut pem = |path: &Option<String>, text: &Option<String>| match (path.as_deref(), text.as_deref()) {
        (None | Some(""), None | Some("")) => Ok(None),
        (None | Some(""), Some(text)) => Ok(Some((file.clone(), text.as_bytes().to_owned()))),
        (Some(path), _) => {
            let path = file.parent().unwrap_or(Path::new("")).join(path);
            setup.read_named(word, &path).map(|bytes| Some((path, bytes)))
        }
    };
    let certificate = pem(&tls.cert_file, &tls.cert)?;
    let key = pem(&tls.key_file, &tls.key)?;
    let ca = pem(&tls.client_ca_file, &tls.client_ca)?;
    let clients = tls.client_auth_type.unwrap_or_default();
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if ca.is_none() && clients == ClientAuth::None => {
            let warning =
                error("there is no tls_server_config with a certificate, so metrics are served without TLS");
            setup.builder.warnings.push(warning);
            return Ok(None);
        }
        (None, _) => return Err(error("tls_server_config needs cert_file or cert")),
        (_, None) => return Err(error("tls_server_config needs key_file or key")),
    };
    if ca.is_some() && clients == ClientAuth::None {
        return Err(error("client_ca_file needs a client_auth_type such as RequireAndVerifyClientCert"));
    }
    let (provider, versions) = (tls.provider().map_err(|why| error(&why))?, tls.versions());
    if versions.is_empty() {
        return Err(error("min_version is above max_version"));
    }
    fn as_pem((file, bytes): &(PathBuf, Vec<u8>)) -> Pem<'_> {
        Pem { file, bytes }
    }
    let ca = ca.as_ref().map(as_pem);
    let mut config = server_config(as_pem(&certificate), as_pem(&key), clients, ca, provider, &versions)
        .map_err(|error| word.error(error.to_string()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.ignore_client_order = tls.prefer_server_cipher_suites.unwrap_or(true);
    // These files don't belong to the block's fingerprint: the block keeps its cache when the certificate is renewed.
    let files = setup.builder.files_read.split_off(known);
    Ok(Some(HttpTls { files, config: Arc::new(config) }))
}

impl TlsServerConfig {
    fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let (min, max) =
            (self.min_version.unwrap_or(Version::Tls12), self.max_version.unwrap_or(Version::Tls13));
        let all = [(Version::Tls12, &version::TLS12), (Version::Tls13, &version::TLS13)];
        all.into_iter().filter(|(it, _)| (min..=max).contains(it)).map(|(_, version)| version).collect()
    }

    /// Returns a crypto provider with the cipher suites and the curves.
    fn provider(&self) -> Result<CryptoProvider, String> {
        let mut provider = default_provider();
        if let Some(curves) = self.curve_preferences.as_ref().filter(|curves| !curves.is_empty()) {
            provider.kx_groups = curves.iter().map(|curve| curve.group()).collect();
        }
        if let Some(names) = self.cipher_suites.as_ref().filter(|names| !names.is_empty()) {
            let name =
                |suite: &SupportedCipherSuite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            // As in Go, the cipher suites of TLS 1.3 aren't configurable.
            let of_tls13 = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_some());
            let mut suites: Vec<_> = of_tls13.copied().collect();
            for wanted in names {
                let found = provider.cipher_suites.iter().find(|suite| name(suite) == *wanted);
                let suite = found.ok_or_else(|| {
                    let known: Vec<_> = provider.cipher_suites.iter().map(name).collect();
                    format!("cipher_suites: {wanted:?} isn't one of {}", known.join(", "))
                })?;
                if !suites.contains(suite) {
                    suites.push(*suite);
                }
            }
            provider.cipher_suites = suites;
        }
        Ok(provider)
    }
}

#[cfg(test)]
mod tests;
