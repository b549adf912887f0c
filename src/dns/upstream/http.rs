//! DNS over HTTPS (RFC 8484) and over gRPC to an upstream: the requests, and which responses are answers.

use std::net::SocketAddr;

use data_encoding::BASE64URL_NOPAD;
use hyper::header::{ACCEPT, AGE, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, TE};
use hyper::http::uri::Scheme;
use hyper::{Method, Request, StatusCode, Uri, http};

use super::endpoint::TlsClient;
use crate::dns::message::freshness::reduce_ttls;
use crate::dns::message::{grpc, https};

/// The maximum size of a body in bytes, which is larger by gRPC.
pub(crate) const MAX_BODY_BYTES: usize = grpc::MAX_BODY_BYTES;
/// The status of a gRPC call that has succeeded, and of one that has found nothing.
const GRPC_OK: &str = "0";
const GRPC_NOT_FOUND: &str = "5";

/// How an upstream is asked by HTTP/2.
#[derive(Clone, Debug)]
pub struct HttpClient {
    /// `None` without TLS, only for gRPC.
    pub tls: Option<TlsClient>,
    /// The host in requests; `None` for the upstream's address.
    pub host: Option<String>,
    pub format: HttpFormat,
}

/// What requests look like.
#[derive(Clone, Debug)]
pub enum HttpFormat {
    /// DNS over HTTPS.
    Dns {
        path: String,
        /// Whether queries are sent by GET, which HTTP caches can answer, and not by POST.
        by_get: bool,
    },
    Grpc,
}

/// Makes the requests to one upstream, and reads its responses.
#[derive(Debug)]
pub(crate) struct HttpRequests {
    scheme: Scheme,
    authority: String,
    format: HttpFormat,
}

/// Why a response isn't an answer. The connection is as good as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpRefusal {
    #[error("the HTTP status is {0}, and not 200 OK")]
    Status(StatusCode),
    #[error("the content type of the HTTP response isn't application/dns-message")]
    MediaType,
    #[error("the body of the HTTP response has more than 65,535 bytes")]
    TooLong,
    #[error("the content type of the HTTP response isn't application/grpc")]
    GrpcMediaType,
    /// Of the header or trailer `grpc-status`.
    #[error("the gRPC status is {0}")]
    GrpcStatus(u32),
    #[error("the gRPC response has no status")]
    NoGrpcStatus,
    #[error("{}", clause(*.0))]
    Grpc(grpc::GrpcError),
}

impl HttpClient {
    pub(crate) fn requests_to(&self, address: SocketAddr) -> HttpRequests {
        let host = self.host.clone().unwrap_or_else(|| match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        });
        // The default port is left out (RFC 9110 section 4.2).
        let (scheme, default) = if self.tls.is_some() { (Scheme::HTTPS, 443) } else { (Scheme::HTTP, 80) };
        let port = address.port();
        let authority = if port == default { host } else { format!("{host}:{port}") };
        HttpRequests { scheme, authority, format: self.format.clone() }
    }
}

impl HttpRequests {
    /// Returns the request for a query, and its body.
    ///
    /// # Errors
    /// If authority and path are no URI; the parser of the Corefile accepts no such ones.
    pub(crate) fn request(&self, query: &[u8]) -> Result<(Request<()>, Option<Vec<u8>>), http::Error> {
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(&*self.authority);
        let (uri, body) = match &self.format {
            HttpFormat::Dns { path, by_get: true } => {
                (uri.path_and_query(format!("{path}?dns={}", BASE64URL_NOPAD.encode(query))), None)
            }
            HttpFormat::Dns { path, by_get: false } => (uri.path_and_query(&**path), Some(query.to_vec())),
            HttpFormat::Grpc => (uri.path_and_query(grpc::PATH), Some(grpc::encode(query))),
        };
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder().method(method).uri(uri.build()?);
        let media_type = match &self.format {
            HttpFormat::Dns { .. } => {
                request = request.header(ACCEPT, https::MEDIA_TYPE);
                https::MEDIA_TYPE
            }
            HttpFormat::Grpc => {
                request = request.header(TE, "trailers");
                grpc::MEDIA_TYPE
            }
        };
        if let Some(body) = &body {
            request = request.header(CONTENT_TYPE, media_type).header(CONTENT_LENGTH, body.len());
        }
        Ok((request.body(())?, body))
    }

    /// Checks the head of a response.
    pub(crate) fn check_head(&self, status: StatusCode, headers: &HeaderMap) -> Result<(), HttpRefusal> {
        // A redirect isn't followed either: it could lead to any host.
        if status != StatusCode::OK {
            return Err(HttpRefusal::Status(status));
        }
        let media_type = text(headers, CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
        match &self.format {
            HttpFormat::Dns { .. } if !media_type.eq_ignore_ascii_case(https::MEDIA_TYPE) => {
                Err(HttpRefusal::MediaType)
            }
            // A suffix, such as `+proto`, may follow.
            HttpFormat::Grpc if media_type.split('+').next() != Some(grpc::MEDIA_TYPE) => {
                Err(HttpRefusal::GrpcMediaType)
            }
            _ if text(headers, CONTENT_LENGTH)
                .parse::<u64>()
                .is_ok_and(|length| length > MAX_BODY_BYTES as u64) =>
            {
                Err(HttpRefusal::TooLong)
            }
            _ => Ok(()),
        }
    }

    /// Returns the DNS message of a whole response to `query`. `trailers` are the headers if there is no body.
    pub(crate) fn message(
        &self,
        query: &[u8],
        headers: &HeaderMap,
        mut body: Vec<u8>,
        trailers: &HeaderMap,
    ) -> Result<Vec<u8>, HttpRefusal> {
        match &self.format {
            HttpFormat::Dns { .. } if body.len() > https::MAX_MESSAGE_BYTES => Err(HttpRefusal::TooLong),
            HttpFormat::Dns { .. } => {
                reduce_ttls(&mut body, age(text(headers, AGE)));
                Ok(body)
            }
            HttpFormat::Grpc => match text(trailers, HeaderName::from_static(grpc::STATUS)) {
                GRPC_OK => Ok(grpc::decode(&body).map_err(HttpRefusal::Grpc)?.to_vec()),
                GRPC_NOT_FOUND => Ok(not_found(query)),
                status => Err(status.parse().map_or(HttpRefusal::NoGrpcStatus, HttpRefusal::GrpcStatus)),
            },
        }
    }
}

/// Returns the sentence about an error in the form of the other texts, which follow `read tcp …: `.
fn clause(error: grpc::GrpcError) -> String {
    let mut text = error.to_string();
    text.truncate(text.trim_end_matches('.').len());
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the answer NXDOMAIN, as CoreDNS does for this status. Of the query's second flags it has only CD: nothing was
/// validated.
fn not_found(query: &[u8]) -> Vec<u8> {
    const RESPONSE: u8 = 0x80;
    const CD: u8 = 0x10;
    const NXDOMAIN: u8 = 3;
    let mut message = query.to_vec();
    message[2] |= RESPONSE;
    message[3] = message[3] & CD | NXDOMAIN;
    message
}

/// Parses the header `Age` (RFC 9111 section 5.1). An invalid one is ignored; one above the maximum is the maximum.
fn age(text: &str) -> u32 {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { text.parse().unwrap_or(u32::MAX) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::upstream::tls::connector;

    fn requests(host: Option<&str>, address: &str, format: HttpFormat) -> HttpRequests {
        let connector = connector(Some(rustls::RootCertStore::empty()), None).unwrap();
        let tls = matches!(format, HttpFormat::Dns { .. }).then_some(TlsClient { connector, name: None });
        HttpClient { tls, host: host.map(str::to_owned), format }.requests_to(address.parse().unwrap())
    }

    fn dns(by_get: bool) -> HttpFormat {
        HttpFormat::Dns { path: "/a/b%20c".to_owned(), by_get }
    }

    #[test]
    fn request_has_the_host_the_path_and_the_query() {
        for (host, address, authority) in [
            (None, "192.0.2.1:443", "192.0.2.1"),
            (None, "[fe80::1%2]:8443", "[fe80::1]:8443"),
            (Some("dns.example"), "192.0.2.1:443", "dns.example"),
            (Some("dns.example"), "192.0.2.1:8443", "dns.example:8443"),
        ] {
            let (request, body) = requests(host, address, dns(false)).request(&[0, 1, 255]).unwrap();
            assert_eq!(request.uri(), &*format!("https://{authority}/a/b%20c"));
            let header = |name| request.headers()[name].to_str().unwrap();
            assert_eq!([header(ACCEPT), header(CONTENT_TYPE)], [https::MEDIA_TYPE; 2]);
            assert_eq!((request.method(), header(CONTENT_LENGTH)), (&Method::POST, "3"));
            assert_eq!((body.as_deref(), request.headers().len()), (Some(&[0, 1, 255][..]), 3));
            let (request, body) = requests(host, address, dns(true)).request(&[0, 1, 255]).unwrap();
            assert_eq!(request.uri(), &*format!("https://{authority}/a/b%20c?dns=AAH_"));
            assert_eq!((request.method(), request.headers().len(), body), (&Method::GET, 1, None));
            let (request, body) = requests(host, address, HttpFormat::Grpc).request(&[0, 1, 255]).unwrap();
            let authority =
                if authority.ends_with(":8443") { authority.to_owned() } else { format!("{authority}:443") };
            assert_eq!(request.uri(), &*format!("http://{authority}/coredns.dns.DnsService/Query"));
            let header = |name| request.headers()[name].to_str().unwrap();
            assert_eq!([header(TE), header(CONTENT_TYPE)], ["trailers", "application/grpc"]);
            assert_eq!((request.method(), body), (&Method::POST, Some(grpc::encode(&[0, 1, 255]))));
        }
    }

    fn map(all: &[(HeaderName, Option<&str>)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.extend(value.map(|value| (name.clone(), value.parse().unwrap())));
        }
        headers
    }

    #[test]
    fn only_a_dns_message_with_status_200_is_an_answer() {
        let media_types = "the content type of the HTTP response isn't application/dns-message";
        let too_long = "the body of the HTTP response has more than 65,535 bytes";
        let name = Some(https::MEDIA_TYPE);
        for (status, media_type, length, expected) in [
            (200, name, None, ""),
            (200, Some("Application/DNS-Message ; charset=x"), Some("65535"), ""),
            (200, name, Some("70000"), too_long),
            (200, None, None, media_types),
            (200, Some("text/html"), None, media_types),
            (204, name, None, "the HTTP status is 204 No Content, and not 200 OK"),
            (302, name, None, "the HTTP status is 302 Found, and not 200 OK"),
            (404, name, None, "the HTTP status is 404 Not Found, and not 200 OK"),
            (503, None, None, "the HTTP status is 503 Service Unavailable, and not 200 OK"),
        ] {
            let headers = map(&[(CONTENT_TYPE, media_type), (CONTENT_LENGTH, length)]);
            let requests = requests(None, "192.0.2.1:443", dns(false));
            let found = requests.check_head(StatusCode::from_u16(status).unwrap(), &headers);
            assert_eq!(found.err().map(|error| error.to_string()).unwrap_or_default(), expected);
        }
        let requests = requests(None, "192.0.2.1:443", dns(false));
        let message = |body| requests.message(&[0; 12], &HeaderMap::new(), body, &HeaderMap::new());
        assert_eq!(message(vec![7; https::MAX_MESSAGE_BYTES]), Ok(vec![7; https::MAX_MESSAGE_BYTES]));
        assert_eq!(message(vec![7; https::MAX_MESSAGE_BYTES + 1]), Err(HttpRefusal::TooLong));
    }

    #[test]
    fn age_is_a_number_or_ignored() {
        for (text, expected) in
            [("", 0), ("250", 250), ("-1", 0), ("+1", 0), ("1.5", 0), ("99999999999999999999", u32::MAX)]
        {
            assert_eq!(age(text), expected, "{text}");
        }
    }

    #[test]
    fn grpc_answer_needs_the_status_0() {
        let requests = requests(None, "192.0.2.1:443", HttpFormat::Grpc);
        // With AD and CD.
        let query = [0, 0, 1, 0x30, 0, 0, 0, 0, 0, 0, 0, 0];
        let status = |text| map(&[(HeaderName::from_static(grpc::STATUS), text)]);
        for (text, body, expected) in [
            (Some("0"), grpc::encode(b"ab"), Ok(b"ab".to_vec())),
            (Some("5"), vec![], Ok(vec![0, 0, 0x81, 0x13, 0, 0, 0, 0, 0, 0, 0, 0])),
            (Some("14"), grpc::encode(b"ab"), Err("the gRPC status is 14".to_owned())),
            (Some("x"), grpc::encode(b"ab"), Err("the gRPC response has no status".to_owned())),
            (None, grpc::encode(b"ab"), Err("the gRPC response has no status".to_owned())),
            (Some("0"), vec![], Err("the gRPC message isn't complete".to_owned())),
        ] {
            let found = requests.message(&query, &HeaderMap::new(), body, &status(text));
            assert_eq!(found.map_err(|error| error.to_string()), expected);
        }
        for (media_type, expected) in [
            (Some("application/grpc"), Ok(())),
            (Some("application/grpc+proto"), Ok(())),
            (Some("application/grpc-web"), Err(HttpRefusal::GrpcMediaType)),
            (Some("application/dns-message"), Err(HttpRefusal::GrpcMediaType)),
            (None, Err(HttpRefusal::GrpcMediaType)),
        ] {
            let headers = map(&[(CONTENT_TYPE, media_type)]);
            assert_eq!(requests.check_head(StatusCode::OK, &headers), expected);
        }
    }
}
