//! Parses a line of *dnstap*.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::listener::Incoming;
use super::sink::{Endpoint, Outgoing, unverified};
use super::{NAME, OPTIONS};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::plugins::log::format::Format;
use crate::dns::plugins::log::parse_format;
use crate::dns::plugins::nsid::hostname;
use crate::dns::plugins::setup::Setup;
use crate::dns::plugins::tls::server;
use crate::dns::transport::tls::{ClientAuth, server_config};
use crate::dns::upstream::tls::connector;

const SOCKET: &str =
    "a socket such as unix:///run/dnstap.sock, tcp://192.0.2.1:6000 or tls://tap.example.com:6000";

pub(super) struct Line {
    pub direction: Direction,
    pub is_full: bool,
    /// The multiple of the default length of the queue.
    pub queue: usize,
    pub identity: String,
    pub version: String,
    pub extra: Option<Format>,
}

pub(super) enum Direction {
    To(Outgoing),
    From(Incoming),
}

/// The options in braces.
#[derive(Default)]
struct Options<'a> {
    identity: Option<String>,
    version: Option<String>,
    extra: Option<Format>,
    skip_verify: Option<&'a Directive>,
    tls: Option<&'a Directive>,
}

pub(super) fn parse(line: &Directive, setup: &mut Setup<'_>) -> Result<Line, CorefileError> {
    let (words, is_listener) = match line.at_most(5)? {
        [first, rest @ ..] if first.text == "listen" => {
            if rest.is_empty() {
                return Err(first.needs(SOCKET));
            }
            (rest, true)
        }
        [_, _, _, _, excess] => {
            return Err(
                excess.error(format!("{NAME} takes 4 arguments at most: SOCKET full WRITEBUFFER QUEUE"))
            );
        }
        words => (words, false),
    };
    let [socket, rest @ ..] = words else { return Err(line.missing_argument(SOCKET)) };
    let endpoint = endpoint(socket, if is_listener { "[::]" } else { "127.0.0.1" }, setup)?;
    if let Some(word) = rest.first().filter(|word| word.text != "full") {
        return Err(word.unexpected("full, which stands before the sizes of buffer and queue"));
    }
    let write_buffer = multiple(rest.get(1), 1024, "a number of MiB from 1 to 1024")?;
    let queue = multiple(rest.get(2), 4096, "a number from 1 to 4096, for 10,000 messages each")?;
    if let Some(size) = rest.get(1).filter(|_| is_listener) {
        let warning =
            size.error("the sizes of buffer and queue have no effect here: sinks of listen have the default");
        setup.builder.warnings.push(warning);
    }
    let options = options(line, setup)?;
    let skips = warn_of_skipverify(&options, &endpoint, setup);
    let direction = if is_listener {
        Direction::From(incoming(endpoint, &options, line, skips, setup)?)
    } else {
        if let Some(tls) = options.tls {
            return Err(tls.error("tls is only for sinks that connect to this server: dnstap listen tls://…"));
        }
        let tls = tls_client(&endpoint, skips, socket)?;
        Direction::To(Outgoing { endpoint, tls, write_buffer })
    };
    Ok(Line {
        direction,
        is_full: !rest.is_empty(),
        queue,
        identity: options.identity.unwrap_or_else(hostname),
        version: options
            .version
            .unwrap_or_else(|| concat!("lb-linker-", env!("CARGO_PKG_VERSION")).to_owned()),
        extra: options.extra,
    })
}

fn multiple(word: Option<&Token>, maximum: usize, what: &str) -> Result<usize, CorefileError> {
    word.map_or(Ok(1), |word| word.parse_in_range(1..=maximum, what))
}

/// Parses an address; `default` is the host of one without host.
fn endpoint(word: &Token, default: &str, setup: &Setup<'_>) -> Result<Endpoint, CorefileError> {
    let unix = |path: &str| {
        if path.is_empty() { Err(word.unexpected(SOCKET)) } else { Ok(Endpoint::Unix(setup.path(path))) }
    };
    match word.text.split_once("://") {
        None => unix(&word.text),
        Some(("unix", path)) => unix(path),
        Some(("tcp", address)) => Ok(Endpoint::Tcp(host_and_port(address, default, word)?)),
        Some(("tls", address)) => Ok(Endpoint::Tls(host_and_port(address, default, word)?)),
        Some(_) => Err(word.unexpected(SOCKET)),
    }
}

fn host_and_port(text: &str, default: &str, word: &Token) -> Result<String, CorefileError> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = text.rsplit_once(':').ok_or_else(|| word.unexpected(SOCKET))?;
    let is_bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if is_bare_ipv6 || host.contains('/') || !port.parse().is_ok_and(|port: u16| port != 0) {
        return Err(word.unexpected(SOCKET));
    }
    let host = if host.is_empty() { default } else { host };
    Ok(format!("{host}:{port}"))
}

fn options<'a>(line: &'a Directive, setup: &mut Setup<'_>) -> Result<Options<'a>, CorefileError> {
    let mut options = Options::default();
    for option in line.options() {
        option.no_block()?;
        let text = |what| option.single_argument(what).map(|word| word.text.clone());
        match option.name() {
            "identity" => options.identity = Some(text("the name of this server")?),
            "version" => options.version = Some(text("the version of this server")?),
            "extra" => {
                let word = option.single_argument("a text such as \"upstream: {/forward/upstream}\"")?;
                let format = parse_format(word, setup.block, setup.builder);
                options.extra = Some(format).filter(|_| !word.text.is_empty());
            }
            "skipverify" => {
                option.no_arguments()?;
                options.skip_verify = Some(option);
            }
            "tls" => options.tls = Some(option),
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    Ok(options)
}

/// Returns whether certificates aren't verified.
fn warn_of_skipverify(options: &Options<'_>, endpoint: &Endpoint, setup: &mut Setup<'_>) -> bool {
    let Some(option) = options.skip_verify else { return false };
    if !matches!(endpoint, Endpoint::Tls(_)) {
        setup.builder.warnings.push(option.error("skipverify has no effect here: the socket isn't tls://"));
    }
    true
}

fn tls_client(
    endpoint: &Endpoint,
    skips: bool,
    word: &Token,
) -> Result<Option<(tokio_rustls::TlsConnector, ServerName<'static>)>, CorefileError> {
    let Endpoint::Tls(address) = endpoint else { return Ok(None) };
    let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| word.error(format!("{host:?} isn't a name that a certificate can have")))?;
    let client = if skips {
        unverified().map_err(|error| word.error(format!("TLS: {error}")))?
    } else {
        connector(None, None).map_err(|error| word.error(error.to_string()))?
    };
    Ok(Some((client, name)))
}

fn incoming(
    endpoint: Endpoint,
    options: &Options<'_>,
    line: &Directive,
    skips: bool,
    setup: &mut Setup<'_>,
) -> Result<Incoming, CorefileError> {
    if !matches!(endpoint, Endpoint::Tls(_)) {
        if let Some(tls) = options.tls {
            setup.builder.warnings.push(tls.error("tls has no effect here: the socket isn't tls://"));
        }
        return Ok(Incoming { endpoint, tls: None });
    }
    let Some(tls) = options.tls else {
        return Err(line.error("dnstap listen tls:// needs a line with its certificate: tls CERT KEY [CA]"));
    };
    let config = server(setup, tls, |certificate, key, ca| {
        let clients = match (&ca, skips) {
            (None, _) => ClientAuth::None,
            (Some(_), true) => ClientAuth::VerifyIfGiven,
            (Some(_), false) => ClientAuth::RequireAndVerify,
        };
        let provider = rustls::crypto::ring::default_provider();
        server_config(certificate, key, clients, ca, provider, rustls::DEFAULT_VERSIONS)
    })?;
    Ok(Incoming { endpoint, tls: Some(Arc::new(config).into()) })
}
