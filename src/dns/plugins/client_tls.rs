//! The option `tls` of plugins that ask servers by TLS: CAs, and the client's certificate.

use std::path::Path;

use rustls::RootCertStore;
use tokio_rustls::TlsConnector;

use super::setup::Setup;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::upstream::tls::{ConnectorError, connector, root_certificates};

/// The files that the option names.
#[derive(Clone, Default)]
pub(super) struct ClientTls {
    /// The certificates of the CAs; `None` for those of the system.
    ca: Option<Pem>,
    /// The client certificate and its key.
    identity: Option<(Pem, Pem)>,
}

#[derive(Clone)]
struct Pem {
    bytes: Vec<u8>,
    word: Token,
}

impl ClientTls {
    /// Parses `tls`, `tls CA`, `tls CERT KEY` or `tls CERT KEY CA`.
    pub(super) fn parse(line: &Directive, setup: &mut Setup<'_>) -> Result<Self, CorefileError> {
        let files: Vec<Pem> =
            line.at_most(3)?.iter().map(|word| Pem::read(word, setup)).collect::<Result<_, _>>()?;
        let (identity, ca) = match &files[..] {
            [] => (None, None),
            [ca] => (None, Some(ca)),
            [certificate, key, ca @ ..] => (Some((certificate.clone(), key.clone())), ca.first()),
        };
        let tls = Self { ca: ca.cloned(), identity };
        // Report errors in the files even if no server is asked by TLS.
        match &tls.identity {
            Some(_) => tls.connector(&line.tokens[0]).map(drop)?,
            None => tls.roots().map(drop)?,
        }
        Ok(tls)
    }

    /// Returns the contents of the files.
    pub(super) fn contents(&self) -> Vec<Vec<u8>> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca.iter().chain(identity).map(|pem| pem.bytes.clone()).collect()
    }

    fn roots(&self) -> Result<Option<RootCertStore>, CorefileError> {
        let roots = self
            .ca
            .as_ref()
            .map(|ca| root_certificates(&ca.bytes).map_err(|error| ca.word.error(ca.wrong(error))));
        roots.transpose()
    }

    /// Returns the connector. `word` is the place of errors that no file has.
    pub(super) fn connector(&self, word: &Token) -> Result<TlsConnector, CorefileError> {
        let identity = self.identity.as_ref();
        let bytes = identity.map(|(certificate, key)| (&*certificate.bytes, &*key.bytes));
        connector(self.roots()?, bytes).map_err(|error| match (error, identity) {
            (ConnectorError::Certificate(error), Some((certificate, _))) => {
                certificate.word.error(certificate.wrong(error))
            }
            (ConnectorError::Key(error), Some((_, key))) => key.word.error(key.wrong(error)),
            (error, _) => word.error(error.to_string()),
        })
    }
}

impl Pem {
    fn read(word: &Token, setup: &mut Setup<'_>) -> Result<Self, CorefileError> {
        let path = setup.path(&word.text);
        let bytes = setup.read(&path);
        let bytes = bytes.map_err(|error| word.error(format!("{}: {error}", path.display())))?;
        Ok(Self { bytes, word: word.clone() })
    }

    fn wrong(&self, error: impl std::fmt::Display) -> String {
        format!("{}: {error}", Path::new(&self.word.text).display())
    }
}
