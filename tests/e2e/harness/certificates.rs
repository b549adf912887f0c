//! The certificate and the keys of an API server. The RSA keys that it would make itself take a tenth of the processor
//! time of a start, and a millisecond for each connection.

use std::fs;
use std::io;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Writes the files `apiserver.crt`, with the certificate of its CA, `apiserver.key` and `tokens.pub`, the public key
/// of the latter.
///
/// # Errors
/// If the file system refuses.
pub fn write(directory: &Path) -> io::Result<()> {
    let params = |names: &[&str], title: &str| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, title);
        params
    };
    let key = || KeyPair::generate().expect("a random key");
    let (ca_key, key) = (key(), key());
    let mut ca = params(&[], "CA of tests");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).expect("a certificate of a CA");
    let issuer = Issuer::new(ca, ca_key);
    // The names that an API server's own certificate has.
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"];
    let server = params(&names, "kube-apiserver of tests");
    let certificate = server.signed_by(&key, &issuer).expect("a certificate");
    fs::create_dir_all(directory)?;
    fs::write(directory.join("apiserver.crt"), certificate.pem() + &ca_certificate.pem())?;
    fs::write(directory.join("apiserver.key"), key.serialize_pem())?;
    fs::write(directory.join("tokens.pub"), key.public_key_pem())
}
