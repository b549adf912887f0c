//! # Name
//!
//! *tls* - sets the certificate of a server for DNS over TLS, HTTPS, gRPC or QUIC.
//!
//! # Description
//!
//! A block with an address that begins with `tls://` answers DNS over TLS (RFC 7858), by default on port 853. Blocks
//! `quic://` ([*quic*](#quic)) need this plugin. Without it blocks `tls://`, `https://` ([*https*](#https)) and `grpc://`
//! ([*grpc_server*](#grpc_server)) answer without TLS, for a proxy in front that has the certificate; a block `tls://`
//! then answers by TCP, and a warning says so. In other blocks this plugin has no effect. TLS 1.2 and 1.3 are supported,
//! by QUIC 1.3. The files are read with the Corefile: *reload* also
//! notices a renewed certificate.
//!
//! Differences from CoreDNS: certificates aren't obtained from an ACME server, so `acme` and its options are rejected:
//! use cert-manager or another client to write the files. `keylog` is rejected, because it exposes the content of
//! every connection. A client that offers ALPN protocols without `dot` (by HTTPS `h2` and `http/1.1`, by gRPC `h2`),
//! and one that doesn't offer `doq` by QUIC, is rejected, because it doesn't want DNS. A second line is an error; in
//! CoreDNS the last one counts.
//!
//! # Syntax
//!
//! Syntax: `tls CERT KEY [CA]`: the certificate, followed by the intermediate ones up to its CA; its private key (PKCS
//! #8, PKCS #1 or SEC 1); the CA certificates that clients' certificates are verified with, by default those of the
//! system. All are files in PEM. Option:
//!
//! - `client_auth MODE` sets which clients are served. `nocert`, the default: all; **CA** has no effect then.
//!   `request`: all; a certificate is requested, but not verified. `require`: those with a certificate of any CA.
//!   `verify_if_given`: those with a certificate of the CA, or without one. `require_and_verify`: those with a
//!   certificate of the CA.
//!
//! For example, in a block `tls://example.org:8853`: `tls tls.crt tls.key ca.crt` with
//! `client_auth require_and_verify`.

use std::path::PathBuf;

use super::setup::Setup;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::transport::tls::{ClientAuth, Pem, TlsError, config};

const NAME: &str = "tls";
const FILES: &str = "the files of a certificate and of its key: tls CERT KEY [CA]";
const OPTIONS: [&str; 1] = ["client_auth"];
/// The options of CoreDNS that aren't supported.
const UNSUPPORTED_OPTIONS: [&str; 7] = ["keylog", "acme", "email", "ca", "storage", "ca_root", "resolver"];
const MODES: [(&str, ClientAuth); 5] = [
    ("nocert", ClientAuth::None),
    ("request", ClientAuth::Request),
    ("require", ClientAuth::Require),
    ("verify_if_given", ClientAuth::VerifyIfGiven),
    ("require_and_verify", ClientAuth::RequireAndVerify),
];

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?.clone();
    let clients = clients(&line)?;
    let config = server(setup, &line, |certificate, key, ca| config(certificate, key, clients, ca))?;
    setup.builder.tls = Some(config.into());
    Ok(())
}

/// Returns the configuration of a server, which `config` makes of the files in a line `tls CERT KEY [CA]`.
pub(super) fn server<C>(
    setup: &mut Setup<'_>,
    line: &Directive,
    config: impl FnOnce(Pem<'_>, Pem<'_>, Option<Pem<'_>>) -> Result<C, TlsError>,
) -> Result<C, CorefileError> {
    let words = line.at_most(3)?;
    let [certificate, key, ca @ ..] = words else {
        return Err(line.missing_argument(FILES));
    };
    let mut read = |word: &Token| {
        let file = setup.path(&word.text);
        setup.read_named(word, &file).map(|bytes| (file, bytes))
    };
    let (certificate, key) = (read(certificate)?, read(key)?);
    let ca = ca.first().map(read).transpose()?;
    config(pem(&certificate), pem(&key), ca.as_ref().map(pem)).map_err(|error| {
        let at_fault = words.iter().find(|word| error.file() == Some(&setup.path(&word.text)));
        at_fault.unwrap_or(&words[0]).error(error.to_string())
    })
}

fn pem((file, bytes): &(PathBuf, Vec<u8>)) -> Pem<'_> {
    Pem { file, bytes }
}

fn clients(line: &Directive) -> Result<ClientAuth, CorefileError> {
    let mut clients = ClientAuth::default();
    for option in line.options() {
        option.no_block()?;
        clients = match option.name() {
            "client_auth" => mode(option.single_argument(&modes())?)?,
            name if UNSUPPORTED_OPTIONS.contains(&name) => return Err(option.unsupported(NAME, &OPTIONS)),
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        };
    }
    Ok(clients)
}

fn mode(word: &Token) -> Result<ClientAuth, CorefileError> {
    let found = MODES.iter().find(|(name, _)| *name == word.text);
    found.map(|(_, mode)| *mode).ok_or_else(|| word.unexpected(&modes()))
}

fn modes() -> String {
    format!("one of {}", MODES.map(|(name, _)| name).join(", "))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::super::tests::support::TestServer;

    /// Creates a certificate and its key in `crt` and `key`, another certificate in `other`, and a file `junk` that
    /// isn't PEM.
    fn files() -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        for name in ["other", "crt"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["dns.example".to_owned()]).unwrap();
            write(name, &params.self_signed(&key).unwrap().pem());
            write("key", &key.serialize_pem());
        }
        write("junk", "nothing of use");
        directory
    }

    #[test]
    fn valid_files_configure_tls_and_are_noted_for_reload() {
        let directory = files();
        let at = directory.path().display();
        for (ca, clients) in [("", "nocert"), ("crt", "require"), ("crt", "verify_if_given")] {
            let ca = if ca.is_empty() { String::new() } else { format!("{at}/{ca}") };
            let builder =
                TestServer::builder(&format!("tls {at}/crt {at}/key {ca} {{\nclient_auth {clients}\n}}"));
            assert!(builder.tls.is_some(), "{clients}");
            let read: Vec<_> = builder.files_read.iter().map(|(file, _)| file.file_name().unwrap()).collect();
            assert_eq!(read[..2], ["crt", "key"]);
            assert_eq!(read.get(2).is_some(), !ca.is_empty());
        }
    }

    #[test]
    fn error_points_at_the_broken_file() {
        let directory = files();
        let at = directory.path().display().to_string();
        // Returns the index of the file that the error points at, and the message.
        let error = |names: &str| {
            let files: Vec<String> = names.split(' ').map(|name| format!("{at}/{name}")).collect();
            let line = format!("tls {}", files.join(" "));
            let error = TestServer::error(&line);
            let (column, message) = error.strip_prefix("Corefile:2:").unwrap().split_once(": ").unwrap();
            let before = &line[..column.parse::<usize>().unwrap() - 1];
            (before.matches(' ').count() - 1, message.replace(&format!("{at}/"), ""))
        };
        let missing = "missing: can't be read: No such file or directory (os error 2)";
        assert_eq!(error("missing key"), (0, missing.to_owned()));
        assert_eq!(error("crt missing"), (1, missing.to_owned()));
        let no = |what| format!("junk: there is no {what} in PEM: no items found");
        assert_eq!(error("junk key"), (0, no("certificate")));
        assert_eq!(error("crt junk"), (1, no("private key")));
        assert_eq!(error("crt key junk"), (2, no("certificate")));
        let swapped =
            "key: it has a private key and no certificate: the file of the certificate belongs here";
        assert_eq!(error("key crt"), (0, swapped.to_owned()));
        let pair = error("other key");
        assert_eq!(pair.0, 0);
        assert!(pair.1.starts_with("other can't be used with the private key key: "), "{}", pair.1);
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let modes = "one of nocert, request, require, verify_if_given, require_and_verify";
        let needs = "2:1: tls needs the files of a certificate and of its key: tls CERT KEY [CA]".to_owned();
        for (lines, error) in [
            ("tls", needs.clone()),
            ("tls crt", needs),
            ("tls a b c d", "2:11: tls takes 3 arguments at most, and here is \"d\"".to_owned()),
            ("tls a b {\nclient_auth\n}", format!("3:1: client_auth needs {modes}")),
            ("tls a b {\nclient_auth all\n}", format!("3:13: \"all\" isn't {modes}")),
            (
                "tls a b {\nkeylog f\n}",
                "3:1: CoreDNS's option \"keylog\" of tls isn't supported here; supported are client_auth"
                    .to_owned(),
            ),
            (
                "tls {\nacme dns.example.org\n}",
                "3:1: CoreDNS's option \"acme\" of tls isn't supported here; supported are client_auth"
                    .to_owned(),
            ),
            (
                "tls a b {\nciphers x\n}",
                "3:1: tls has no option \"ciphers\"; its option is client_auth".to_owned(),
            ),
            (
                "tls a b\ntls a b",
                "3:1: tls can be there only once in a block, and it is on line 2 already".to_owned(),
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
