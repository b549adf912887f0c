use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::duplex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::super::tests::support::TestServer;

const FILES: &str = "cert_file: crt\n  key_file: key\n  ";

/// A directory for a web configuration, with a certificate and its key in `crt` and `key`, another certificate in
/// `other`, and text without PEM in `junk`.
struct WebConfigDirectory {
    directory: TempDir,
}

impl WebConfigDirectory {
    fn new() -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["other", "crt"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["dns.example".to_owned()]).unwrap();
            site.write(name, &params.self_signed(&key).unwrap().pem());
            site.write("key", &key.serialize_pem());
        }
        site.write("junk", "nothing of use");
        site
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a web configuration, and returns the lines of a block with it.
    fn lines(&self, web: &str) -> String {
        self.write("web.yml", web);
        format!("prometheus 127.0.0.1:0 {{\ntls {}\n}}", self.path("web.yml"))
    }

    /// Returns the TLS configuration, and the warnings.
    fn read(&self, web: &str) -> (Option<Arc<ServerConfig>>, Vec<String>) {
        let builder = TestServer::builder(&self.lines(web));
        let tls = builder.endpoints[0].tls.as_ref().map(|tls| Arc::clone(&tls.config));
        (tls, builder.warnings.iter().map(|warning| self.shortened(&warning.to_string())).collect())
    }

    fn error(&self, web: &str) -> String {
        self.shortened(&TestServer::error(&self.lines(web)))
    }

    fn shortened(&self, text: &str) -> String {
        text.replace(&self.path(""), "").replace("Corefile:3:5: ", "")
    }

    /// Returns the TLS version and the cipher suite of a connection with a client that supports TLS 1.2 and TLS 1.3.
    async fn negotiated(&self, server: Arc<ServerConfig>) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(PemObject::from_pem_file(self.path("crt")).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(server.crypto_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = duplex(1 << 16);
        let name = ServerName::try_from("dns.example").unwrap();
        let client = TlsConnector::from(Arc::new(client));
        let server = TlsAcceptor::from(server);
        let (client, server) = tokio::join!(client.connect(name, near), server.accept(far));
        client.unwrap();
        let server = server.unwrap();
        let connection = server.get_ref().1;
        let suite = connection.negotiated_cipher_suite().unwrap().suite();
        format!("{:?} {suite:?}", connection.protocol_version().unwrap())
    }
}

#[tokio::test]
async fn tls_server_config_options_take_effect() {
    let site = WebConfigDirectory::new();
    let ecdsa = "TLS_ECDHE_ECDSA_WITH";
    for (options, expected) in [
        ("", "TLSv1_3 TLS13_AES_256_GCM_SHA384".to_owned()),
        ("min_version: TLS13", "TLSv1_3 TLS13_AES_256_GCM_SHA384".to_owned()),
        ("cipher_suites: []\n  curve_preferences:", "TLSv1_3 TLS13_AES_256_GCM_SHA384".to_owned()),
        ("max_version: TLS12", format!("TLSv1_2 {ecdsa}_AES_256_GCM_SHA384")),
        (
            &*format!(
                "max_version: \"TLS12\"\n  cipher_suites: [TLS_AES_128_GCM_SHA256, {ecdsa}_AES_128_GCM_SHA256]"
            ),
            format!("TLSv1_2 {ecdsa}_AES_128_GCM_SHA256"),
        ),
    ] {
        let (config, warnings) = site.read(&format!("tls_server_config:\n  {FILES}{options}\n"));
        let config = config.unwrap();
        assert_eq!(config.alpn_protocols, [b"http/1.1"]);
        assert!(config.ignore_client_order);
        assert_eq!(site.negotiated(config).await, expected, "{options}");
        assert_eq!(warnings, [""; 0], "{options}");
    }
    let options = "curve_preferences: [CurveP384, X25519]\n  prefer_server_cipher_suites: false";
    let config = site.read(&format!("tls_server_config:\n  {FILES}{options}\n")).0.unwrap();
    let groups: Vec<_> =
        config.crypto_provider().kx_groups.iter().map(|group| format!("{:?}", group.name())).collect();
    assert_eq!(groups, ["secp384r1", "X25519"]);
    assert!(!config.ignore_client_order);
}

#[test]
fn certificate_is_a_file_or_text_as_in_coredns() {
    let site = WebConfigDirectory::new();
    let text = |name: &str| site.text(name).replace('\n', "\n    ");
    let inline =
        format!("tls_server_config:\n  cert: |\n    {}\n  key: |\n    {}\n", text("crt"), text("key"));
    let both = format!("{inline}  cert_file: crt\n  key_file: key\n");
    let absolute = format!("tls_server_config: {{cert_file: {}, key_file: key}}", site.path("crt"));
    let with_http = format!("tls_server_config:\n  {FILES}\nhttp_server_config:\n  http2: false\n");
    for (web, read) in [
        (&inline, &["web.yml"][..]),
        (&both, &["web.yml", "crt", "key"]),
        (&absolute, &["web.yml", "crt", "key"]),
        (&with_http, &["web.yml", "crt", "key"]),
    ] {
        let builder = TestServer::builder(&site.lines(web));
        let files = &builder.endpoints[0].tls.as_ref().unwrap().files;
        let files: Vec<_> = files.iter().map(|(file, _)| file.file_name().unwrap()).collect();
        assert_eq!(files, read, "{web}");
        assert_eq!(builder.files_read, []);
    }
}

#[test]
fn client_authentication_has_the_names_of_go() {
    let site = WebConfigDirectory::new();
    for clients in [
        "NoClientCert",
        "RequestClientCert",
        "RequireAnyClientCert",
        "RequireClientCert",
        "VerifyClientCertIfGiven\n  client_ca_file: other",
        "RequireAndVerifyClientCert\n  client_ca_file: other",
    ] {
        let web = format!("tls_server_config:\n  {FILES}client_auth_type: {clients}\n");
        assert!(site.read(&web).0.is_some(), "{clients}");
    }
}

#[test]
fn file_without_a_certificate_causes_a_warning() {
    let site = WebConfigDirectory::new();
    for web in [
        "",
        "# nothing\n",
        "tls_server_config:\n",
        "tls_server_config: {cert_file: \"\", min_version: TLS13}",
    ] {
        let (tls, warnings) = site.read(web);
        assert!(tls.is_none(), "{web}");
        let warning =
            "web.yml: there is no tls_server_config with a certificate, so metrics are served without TLS";
        assert_eq!(warnings, [warning], "{web}");
    }
}

#[test]
fn invalid_files_are_rejected_with_their_position() {
    let site = WebConfigDirectory::new();
    let missing = "can't be read: No such file or directory (os error 2)";
    let unsupported = "CoreDNS supports this option, lb-linker doesn't";
    for (web, expected) in [
        ("tls_server_config: {cert_file: crt}", "web.yml: tls_server_config needs key_file or key".to_owned()),
        ("tls_server_config: {key_file: key}", "web.yml: tls_server_config needs cert_file or cert".to_owned()),
        (
            "tls_server_config: {client_auth_type: RequireAnyClientCert}",
            "web.yml: tls_server_config needs cert_file or cert".to_owned(),
        ),
        ("tls_server_config: {cert_file: none, key_file: key}", format!("none: {missing}")),
        ("tls_server_config: {cert_file: crt, key_file: none}", format!("none: {missing}")),
        (
            "tls_server_config: {cert_file: junk, key_file: key}",
            "junk: there is no certificate in PEM: no items found".to_owned(),
        ),
        (
            "tls_server_config: {cert: junk, key_file: key}",
            "web.yml: there is no certificate in PEM: no items found".to_owned(),
        ),
        (
            "tls_server_config: {cert_file: crt, key_file: key, client_ca_file: other}",
            "web.yml: client_ca_file needs a client_auth_type such as RequireAndVerifyClientCert".to_owned(),
        ),
        (
            "tls_server_config: {cert_file: crt, key_file: key, client_auth_type: RequestClientCert, client_ca_file: junk}",
            "junk: there is no certificate in PEM: no items found".to_owned(),
        ),
        (
            "tls_server_config: {cert_file: crt, key_file: key, min_version: TLS13, max_version: TLS12}",
            "web.yml: min_version is above max_version".to_owned(),
        ),
        (
            "tls_server_config:\n  cert_file: crt\n  key_file: key\n  min_version: TLS10",
            "web.yml:4:16: unknown variant `TLS10`, expected one of TLS12, TLS13".to_owned(),
        ),
        (
            "tls_server_config:\n  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]\n  cert_file: crt\n  key_file: key",
            "web.yml: cipher_suites: \"TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA\" isn't one of TLS_AES_256_GCM_SHA384, \
             TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, \
             TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, \
             TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, \
             TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
                .to_owned(),
        ),
        ("tls_server_config:\n  client_allowed_sans: [a]", format!("web.yml:2:24: {unsupported}")),
        ("basic_auth_users:\n  admin: x", format!("web.yml:2:3: {unsupported}")),
        ("rate_limit: {burst: 1}", format!("web.yml:1:13: {unsupported}")),
        ("http_server_config:\n  headers: {}", format!("web.yml:2:12: {unsupported}")),
    ] {
        assert_eq!(site.error(web), expected, "{web}");
    }
    let error = site.error("tls_server_config: {cert_file: other, key_file: key}");
    assert!(error.starts_with("other can't be used with the private key key: "), "{error}");
    for (web, start) in [
        ("tls_config:\n  a: b", "web.yml:1:1: unknown field `tls_config`, expected one of "),
        ("tls_server_config:\n  certfile: crt", "web.yml:2:3: unknown field `certfile`, expected one of "),
        (
            "tls_server_config:\n  client_auth_type: all",
            "web.yml:2:21: unknown variant `all`, expected one of NoClientCert, ",
        ),
        ("words\nand words", "web.yml:1:1: "),
    ] {
        let error = site.error(web);
        assert!(error.starts_with(start), "{error}");
    }
    let lines = "prometheus {\ntls /nonexistent/web.yml\n}";
    assert_eq!(TestServer::error(lines), format!("Corefile:3:5: /nonexistent/web.yml: {missing}"));
}

#[test]
fn shared_address_needs_the_same_tls() {
    let site = WebConfigDirectory::new();
    for name in ["web.yml", "other.yml"] {
        site.write(name, &format!("tls_server_config:\n  {FILES}\n"));
    }
    let with = |name: &str| format!("prometheus :9153 {{\ntls {}\n}}", site.path(name));
    let (web, other, plain) = (with("web.yml"), with("other.yml"), "prometheus :9153");
    let blocks = |first: &str, second: &str| format!("{first}\n}}\nexample.org {{\n{second}");
    let rest = ": plugins with the same address need the same tls";
    for (lines, expected) in [
        (blocks(plain, &web), format!("5:1: line 2 serves /metrics on [::]:9153 without tls{rest}")),
        (blocks(&web, plain), format!("7:1: line 2 serves /metrics on [::]:9153 with tls web.yml{rest}")),
        (blocks(&web, &other), format!("7:1: line 2 serves /metrics on [::]:9153 with tls web.yml{rest}")),
        (
            format!("{web}\nhealth :9153"),
            format!("2:1: line 5 serves /health on [::]:9153 without tls{rest}"),
        ),
    ] {
        assert_eq!(site.shortened(&TestServer::error(&lines)), format!("Corefile:{expected}"), "{lines}");
    }
    for lines in [blocks(&web, &web), format!("{web}\nhealth :8080"), blocks(&web, "prometheus :9154")] {
        TestServer::configured(&format!(". {{\n{lines}\n}}\n"));
    }
}
