//! The options of plugins that ask servers by TLS: CAs, the client's certificate, and the name in the servers'.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::setup::Setup;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::upstream::endpoint::TlsClient;
use crate::dns::upstream::tls::{ConnectorError, connector, http2_connector, root_certificates};

/// The TLS options for all servers of a line.
#[derive(Clone, Default)]
pub(super) struct ClientTls {
    name: Option<(ServerName<'static>, String)>,
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
    pub(super) fn take(&mut self, line: &Directive, setup: &mut Setup<'_>) -> Result<(), CorefileError> {
        let files: Vec<Pem> =
            line.at_most(3)?.iter().map(|word| Pem::read(word, setup)).collect::<Result<_, _>>()?;
        let (identity, ca) = match &files[..] {
            [] => (None, None),
            [ca] => (None, Some(ca)),
            [certificate, key, ca @ ..] => (Some((certificate.clone(), key.clone())), ca.first()),
        };
        (self.ca, self.identity) = (ca.cloned(), identity);
        // Report errors in the files even if no server is asked by TLS.
        match &self.identity {
            Some(_) => self.connector(&line.tokens[0]).map(drop),
            None => self.roots().map(drop),
        }
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

    /// Parses `tls_servername NAME`.
    pub(super) fn take_name(&mut self, line: &Directive) -> Result<(), CorefileError> {
        let word = line.single_argument("the name in the upstreams' certificates")?;
        self.name = Some((server_name(&word.text, word)?, word.text.clone()));
        Ok(())
    }

    /// Returns the client for an upstream, with the name in **TO** or else the name for all upstreams.
    pub(super) fn client(
        &self,
        name: Option<ServerName<'static>>,
        word: &Token,
        connector: &mut Option<TlsConnector>,
    ) -> Result<TlsClient, CorefileError> {
        if let (Some((_, for_all)), Some(_)) = (&self.name, &name) {
            return Err(word.error(format!("tls_servername {for_all:?} is there, too: one name is enough")));
        }
        let name = name.or_else(|| self.name.as_ref().map(|(name, _)| name.clone()));
        let connector = match connector {
            Some(connector) => connector,
            None => connector.insert(self.connector(word)?),
        };
        Ok(TlsClient { connector: connector.clone(), name })
    }

    /// Returns the client for an upstream by HTTP/2, and the host of requests; `None` for the upstream's address.
    /// Without a name for the certificate, it has to be valid for the `host`; the name for an address stands for its
    /// host, too.
    pub(super) fn http_client(
        &self,
        name: Option<ServerName<'static>>,
        host: Option<&str>,
        word: &Token,
        connector: &mut Option<TlsConnector>,
    ) -> Result<(TlsClient, Option<String>), CorefileError> {
        let TlsClient { connector, name } = self.client(name, word, connector)?;
        let name = match (name, host) {
            (None, Some(host)) => Some(server_name(host, word)?),
            (name, _) => name,
        };
        let host = match (host, &name) {
            (Some(host), _) => Some(host.to_owned()),
            (None, Some(ServerName::DnsName(name))) => Some(name.as_ref().to_owned()),
            (None, _) => None,
        };
        Ok((TlsClient { connector: http2_connector(&connector), name }, host))
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

pub(super) fn server_name(name: &str, word: &Token) -> Result<ServerName<'static>, CorefileError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| word.error(format!("{name:?} isn't a name that a certificate can have")))
}
