//! Parses a line of *etcd*.

use axum::http::Uri;
use secrecy::SecretString;

use super::NAME;
use super::answer::LeaseTtls;
use super::client::{Credentials, Endpoint, PORT};
use super::index::KeyRange;
use super::source::Source;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::client_tls::ClientTls;
use crate::dns::plugins::setup::Setup;

const KNOWN: [&str; 7] =
    ["credentials", "endpoint", "fallthrough", "max-lease-ttl", "min-lease-ttl", "path", "tls"];
/// What CoreDNS has without an option.
const PATH: &str = "/skydns";
const ENDPOINT: &str = "http://localhost:2379";
const LEASE_TTLS: LeaseTtls = LeaseTtls { min: 30, max: 86400 };
/// The maximum number of endpoints; clusters have three or five members.
const MAX_ENDPOINTS: usize = 16;
const URL: &str = "the URL of an etcd server, such as http://etcd:2379 or https://192.0.2.1:2379";
const SECONDS: &str = "a number of seconds, or a duration such as 30s or 1h";

pub(super) struct Options {
    pub(super) zones: ZoneSet,
    pub(super) source: Source,
    pub(super) lease_ttls: LeaseTtls,
    pub(super) fallthrough: Option<ZoneSet>,
}

struct Parsed {
    /// The path, and the place of errors in it.
    path: Option<Token>,
    endpoints: Vec<Token>,
    credentials: Option<Credentials>,
    tls: Option<ClientTls>,
    lease_ttls: LeaseTtls,
    fallthrough: Option<ZoneSet>,
}

pub(super) fn parse(line: &Directive, setup: &mut Setup<'_>) -> Result<Options, CorefileError> {
    let zones = setup.zones_or_own(line.arguments())?;
    let mut parsed = Parsed {
        path: None,
        endpoints: Vec::new(),
        credentials: None,
        tls: None,
        lease_ttls: LEASE_TTLS,
        fallthrough: None,
    };
    for option in line.options() {
        option.no_block()?;
        parsed.read(option, setup)?;
    }
    let Parsed { path, endpoints, credentials, tls, lease_ttls, fallthrough } = parsed;
    let LeaseTtls { min, max } = lease_ttls;
    if min > max {
        let warning =
            format!("min-lease-ttl ({min} s) is longer than max-lease-ttl ({max} s), which has no effect");
        setup.builder.warnings.push(line.error(warning));
    }
    let text = path.as_ref().map_or(PATH, |path| &path.text);
    let place = path.as_ref().unwrap_or(&line.tokens[0]);
    let range = KeyRange::new(text, zones.all()).ok_or_else(|| {
        place.unexpected("a path of keys such as /skydns: \".\" and \"..\" have no meaning there")
    })?;
    let by_tls = tls.is_some();
    let endpoints = match &endpoints[..] {
        [] => vec![endpoint(ENDPOINT, by_tls).ok_or_else(|| line.missing_argument(URL))?],
        words => {
            let one = |word: &Token| endpoint(&word.text, by_tls).ok_or_else(|| word.unexpected(URL));
            words.iter().map(one).collect::<Result<Vec<_>, _>>()?
        }
    };
    let tls_files = tls.as_ref().map(ClientTls::contents).unwrap_or_default();
    let needs_tls = endpoints.iter().any(|endpoint| endpoint.is_tls);
    if by_tls && !needs_tls {
        let warning = "tls has no effect: the endpoints begin with http://";
        setup.builder.warnings.push(line.error(warning));
    }
    let connector = needs_tls.then(|| tls.unwrap_or_default().connector(&line.tokens[0])).transpose()?;
    let source = Source { endpoints, range, credentials, tls: connector, tls_files };
    Ok(Options { zones, source, lease_ttls, fallthrough })
}

impl Parsed {
    fn read(&mut self, option: &Directive, setup: &mut Setup<'_>) -> Result<(), CorefileError> {
        match option.name() {
            "path" => self.path = Some(option.single_argument("a path such as /skydns")?.clone()),
            "endpoint" => {
                let words = option.required_arguments(URL)?;
                if let Some(word) = words.get(MAX_ENDPOINTS) {
                    return Err(word.error(format!("endpoint takes {MAX_ENDPOINTS} URLs at most")));
                }
                self.endpoints = words.to_vec();
            }
            "credentials" => {
                let [user, password] = option.arguments() else {
                    // The words may be parts of the password.
                    return Err(option.missing_argument(
                        "a user and the password, in quotes if it has spaces: credentials USERNAME PASSWORD",
                    ));
                };
                let password = SecretString::from(password.text.clone());
                self.credentials = Some(Credentials { user: user.text.clone(), password });
            }
            "tls" => self.tls.get_or_insert_default().take(option, setup)?,
            "min-lease-ttl" => self.lease_ttls.min = seconds(option, LEASE_TTLS.min)?,
            "max-lease-ttl" => self.lease_ttls.max = seconds(option, LEASE_TTLS.max)?,
            "fallthrough" => self.fallthrough = Some(zones_or_all(option.arguments())?),
            // As in CoreDNS, which had them once.
            "stubzones" | "debug" | "upstream" => {
                let warning = format!("{} has no effect here, as in CoreDNS: delete it", option.name());
                setup.builder.warnings.push(option.error(warning));
            }
            _ => return Err(option.unknown(NAME, &KNOWN)),
        }
        Ok(())
    }
}

/// Parses a URL. Without a scheme, the option `tls` decides.
fn endpoint(text: &str, by_tls: bool) -> Option<Endpoint> {
    let (is_tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return None,
        None => (by_tls, text),
    };
    let uri: Uri = format!("http://{}", rest.strip_suffix('/').unwrap_or(rest)).parse().ok()?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let is_alone = uri.query().is_none() && uri.path() == "/";
    let (host, port) = (authority.host(), authority.as_str().strip_prefix(authority.host())?);
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => PORT,
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (is_alone && !host.is_empty()).then(|| Endpoint { is_tls, host: host.to_owned(), port })
}

/// Parses a TTL; 0 stands for the default.
fn seconds(option: &Directive, default: u32) -> Result<u32, CorefileError> {
    let word = option.single_argument(SECONDS)?;
    let seconds = match word.text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => word.duration().map_err(|_| word.unexpected(SECONDS))?.as_secs(),
    };
    let seconds = u32::try_from(seconds).map_err(|_| word.unexpected(SECONDS))?;
    Ok(if seconds == 0 { default } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::plugins::tests::support::TestServer;

    #[test]
    fn endpoints_are_read_as_by_etcds_client() {
        for (text, expected) in [
            ("http://localhost:2379", Some("http://localhost:2379")),
            ("https://192.0.2.1:4001/", Some("https://192.0.2.1:4001")),
            ("https://[2001:db8::1]", Some("https://[2001:db8::1]:2379")),
            ("etcd", Some("https://etcd:2379")),
            ("etcd:4001", Some("https://etcd:4001")),
            ("http://etcd:0", None),
            ("http://etcd:99999", None),
            ("http://user@etcd:2379", None),
            ("http://etcd:2379/v3", None),
            ("unix:///run/etcd.sock", None),
            ("ftp://etcd", None),
            ("http://", None),
            ("", None),
        ] {
            assert_eq!(endpoint(text, true).map(|found| found.to_string()).as_deref(), expected, "{text}");
        }
        assert_eq!(
            endpoint("etcd", false).map(|found| found.to_string()).as_deref(),
            Some("http://etcd:2379")
        );
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let credentials =
            "a user and the password, in quotes if it has spaces: credentials USERNAME PASSWORD";
        let url = "the URL of an etcd server, such as http://etcd:2379 or https://192.0.2.1:2379";
        for (lines, error) in [
            ("etcd {\nendpoint\n}", format!("3:1: endpoint needs {url}")),
            ("etcd {\nendpoint unix:///a\n}", format!("3:10: \"unix:///a\" isn't {url}")),
            (
                "etcd {\npath /a/../b\n}",
                "3:6: \"/a/../b\" isn't a path of keys such as /skydns: \".\" and \"..\" have no meaning there".to_owned(),
            ),
            (
                "etcd {\ncredentials root\n}",
                format!("3:1: credentials needs {credentials}"),
            ),
            ("etcd {\ncredentials dns my secret\n}", format!("3:1: credentials needs {credentials}")),
            (
                "etcd {\nmin-lease-ttl soon\n}",
                "3:15: \"soon\" isn't a number of seconds, or a duration such as 30s or 1h".to_owned(),
            ),
            ("etcd {\ntls nowhere\n}", "3:5: nowhere: No such file or directory (os error 2)".to_owned()),
            ("etcd {\nendpiont a\n}", "3:1: etcd has no option \"endpiont\"; is it endpoint?".to_owned()),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }

    #[test]
    fn options_that_coredns_had_once_are_warnings() {
        let builder = TestServer::builder("etcd {\nstubzones\nupstream 192.0.2.1\ndebug\n}");
        let warnings: Vec<&str> = builder.warnings.iter().map(|warning| &*warning.message).collect();
        assert_eq!(warnings.len(), 3);
        assert_eq!(warnings[0], "stubzones has no effect here, as in CoreDNS: delete it");
    }

    #[test]
    fn options_without_an_effect_are_warnings() {
        let tls = "tls has no effect: the endpoints begin with http://";
        let lease = |min: u32, max: u32| {
            format!("min-lease-ttl ({min} s) is longer than max-lease-ttl ({max} s), which has no effect")
        };
        for (options, expected) in [
            ("max-lease-ttl 20", vec![lease(30, 20)]),
            ("min-lease-ttl 2m\nmax-lease-ttl 60", vec![lease(120, 60)]),
            ("min-lease-ttl 0\nmax-lease-ttl 0", vec![]),
            ("min-lease-ttl 100000", vec![lease(100_000, 86400)]),
            ("endpoint http://etcd\ntls", vec![tls.to_owned()]),
            ("endpoint http://a https://b\ntls", vec![]),
            ("tls", vec![tls.to_owned()]),
        ] {
            let builder = TestServer::builder(&format!("etcd {{\n{options}\n}}"));
            let warnings: Vec<String> =
                builder.warnings.iter().map(|warning| warning.message.clone()).collect();
            assert_eq!(warnings, expected, "{options}");
        }
    }
}
