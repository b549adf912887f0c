//! What is wrong with settings that kube can't use, in one clause.

use std::fs::read_to_string;

use axum::http::Uri;
use kube::client::RustlsTlsError;
use kube::config::AuthInfo;

use super::{ClientError, kubeconfig};
use crate::model::excerpt::{sentence, value};
use crate::model::tls_error::of_own;
use crate::sync::k8s::errors::credential_failure;

pub(super) fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::InferKubeconfig(error) => kubeconfig::explain(error),
        kube::Error::ProxyProtocolDisabled { proxy_url, .. }
        | kube::Error::ProxyProtocolUnsupported { proxy_url } => of_proxy(proxy_url),
        kube::Error::RustlsTls(error) => of_tls(error),
        error => credential_failure(error).unwrap_or_else(|| error.to_string()),
    }
}

/// The URL may have a password before the host.
fn of_proxy(url: &Uri) -> String {
    let scheme = url.scheme_str().map(|scheme| format!("{scheme}://")).unwrap_or_default();
    let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let proxy = format!("{scheme}{}{port}", url.host().unwrap_or_default());
    format!(
        "the proxy {} (proxy-url of the kubeconfig, or HTTPS_PROXY) isn't one that lb-linker can use: give the URL of an \
         HTTP proxy, with http:// or https://",
        sentence(&proxy)
    )
}

fn of_tls(error: &RustlsTlsError) -> String {
    let text = match error {
        RustlsTlsError::InvalidIdentityPem(error) => {
            return format!("client-certificate or client-key isn't in PEM format: {error}");
        }
        RustlsTlsError::MissingPrivateKey => "client-key has no private key in PEM format",
        RustlsTlsError::MissingCertificate => "client-certificate has no certificate in PEM format",
        RustlsTlsError::InvalidPrivateKey(error) => return format!("client-certificate: {}", of_own(error)),
        RustlsTlsError::AddRootCertificate(error) => {
            return format!("certificate-authority can't be used: {error}");
        }
        error => return error.to_string(),
    };
    text.to_owned()
}

/// Reads the token of a user whose kubeconfig has its file, as kubectl does: kube keeps a line break at its end.
pub(super) fn read_token(auth: &mut AuthInfo) -> Result<(), ClientError> {
    // The same precedence as in kube.
    let has_password = auth.username.is_some() && auth.password.is_some();
    let has_others = has_password || auth.auth_provider.is_some() || auth.token.is_some();
    let Some(file) = auth.token_file.take().filter(|_| !has_others) else { return Ok(()) };
    let wrong = |why: String| ClientError::TokenFile(format!("{} {why}", value(&file)));
    let token = read_to_string(&file).map_err(|error| wrong(format!("can't be read: {error}")))?;
    match token.trim() {
        "" => Err(wrong("is empty".to_owned())),
        token => {
            auth.token = Some(token.to_owned().into());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;
    use kube::Config;
    use rcgen::{CertificateParams, KeyPair};
    use secrecy::ExposeSecret;

    use super::super::client_of;
    use super::*;
    use crate::model::tls_error::VERSION_1;

    fn refusal(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::new("https://192.0.2.1".parse().unwrap());
        change(&mut config);
        let error = client_of(config).err().unwrap().to_string();
        error.strip_prefix("the configuration for the API server can't be used: ").unwrap().to_owned()
    }

    #[tokio::test]
    async fn client_certificate_that_cant_be_used_is_explained() {
        let [key, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let certificate =
            CertificateParams::new(["ann".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        let (key, other) = (key.serialize_pem(), other.serialize_pem());
        let damaged = certificate.replacen("MII", "M!I", 1);
        for (certificate, key, expected) in [
            (&*certificate, &*other, "client-certificate: the key isn't that of the certificate"),
            (&key, &key, "client-certificate has no certificate in PEM format"),
            (&certificate, "-", "client-key has no private key in PEM format"),
            (&damaged, &key, "client-certificate or client-key isn't in PEM format: "),
            (VERSION_1, &key, "client-certificate: the certificate isn't of X.509 version 3: give one"),
        ] {
            let why = refusal(|config| {
                config.auth_info.client_certificate_data = Some(BASE64.encode(certificate.as_bytes()));
                config.auth_info.client_key_data = Some(BASE64.encode(key.as_bytes()).into());
            });
            assert!(why.starts_with(expected), "{why}");
        }
        let why = refusal(|config| config.auth_info.client_certificate = Some("/nowhere/tls.crt".to_owned()));
        assert!(
            why.starts_with("client-certificate \"/nowhere/tls.crt\" can't be read: No such file"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn proxy_of_another_protocol_is_named_without_password() {
        for (url, shown) in [
            ("socks5://ann:secret@192.0.2.1:1080", "socks5://192.0.2.1:1080"),
            ("ftp://proxy.example", "ftp://proxy.example"),
            ("192.0.2.1:3128", "192.0.2.1:3128"),
        ] {
            let why = refusal(|config| config.proxy_url = Some(url.parse().unwrap()));
            let expected =
                format!("the proxy {shown} (proxy-url of the kubeconfig, or HTTPS_PROXY) isn't one that");
            assert!(why.starts_with(&expected) && !why.contains("secret"), "{why}");
        }
    }

    #[tokio::test]
    async fn token_is_read_from_its_file_without_line_break() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let mut auth = AuthInfo { token_file: Some(write("good", " secret\n")), ..AuthInfo::default() };
        read_token(&mut auth).unwrap();
        assert_eq!(auth.token.unwrap().expose_secret(), "secret");
        for (file, expected) in [
            (write("empty", "\n"), "is empty"),
            (directory.path().to_str().unwrap().to_owned(), "can't be read: Is a directory"),
            ("/nowhere/token".to_owned(), "can't be read: No such file"),
        ] {
            let why = refusal(|config| config.auth_info.token_file = Some(file.clone()));
            assert!(why.starts_with(&format!("tokenFile {file:?} {expected}")), "{why}");
        }
    }
}
