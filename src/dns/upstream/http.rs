//! DNS over HTTPS to an upstream (RFC 8484): the requests, and which responses are answers.

use std::net::SocketAddr;

use data_encoding::BASE64URL_NOPAD;
use hyper::header::{ACCEPT, AGE, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::http::uri::Scheme;
use hyper::{Method, Request, StatusCode, Uri, http};

use super::endpoint::TlsClient;

/// The path of requests unless the Corefile has one, as in CoreDNS.
pub const DEFAULT_PATH: &str = "/dns-query";
/// The maximum size of an answer in bytes, as by TCP (RFC 1035 section 4.2.2).
pub(crate) const MAX_ANSWER_BYTES: usize = u16::MAX as usize;
/// The media type of a DNS message (RFC 8484 section 6).
const DNS_MESSAGE: &str = "application/dns-message";
/// The port that an authority leaves out (RFC 9110 section 4.2.2).
const DEFAULT_PORT: u16 = 443;

/// How an upstream is asked by HTTPS.
#[derive(Clone, Debug)]
pub struct HttpsClient {
    pub tls: TlsClient,
    /// The host in requests; `None` for the upstream's address.
    pub host: Option<String>,
    pub path: String,
    /// Whether queries are sent by GET, which HTTP caches can answer, and not by POST.
    pub by_get: bool,
}

/// Makes the requests to one upstream.
#[derive(Debug)]
pub(crate) struct HttpRequests {
    authority: String,
    path: String,
    by_get: bool,
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
}

impl HttpsClient {
    pub(crate) fn requests_to(&self, address: SocketAddr) -> HttpRequests {
        let host = self.host.clone().unwrap_or_else(|| match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        });
        let port = address.port();
        let authority = if port == DEFAULT_PORT { host } else { format!("{host}:{port}") };
        HttpRequests { authority, path: self.path.clone(), by_get: self.by_get }
    }
}

impl HttpRequests {
    /// Returns the request for a query, and its body.
    ///
    /// # Errors
    /// If authority and path are no URI; the parser of the Corefile accepts no such ones.
    pub(crate) fn request(&self, query: &[u8]) -> Result<(Request<()>, Option<Vec<u8>>), http::Error> {
        let uri = Uri::builder().scheme(Scheme::HTTPS).authority(&*self.authority);
        let request = Request::builder().header(ACCEPT, DNS_MESSAGE);
        if self.by_get {
            let uri = uri.path_and_query(format!("{}?dns={}", self.path, BASE64URL_NOPAD.encode(query)));
            return Ok((request.uri(uri.build()?).body(())?, None));
        }
        let request = request.method(Method::POST).uri(uri.path_and_query(&*self.path).build()?);
        let request = request.header(CONTENT_TYPE, DNS_MESSAGE).header(CONTENT_LENGTH, query.len());
        Ok((request.body(())?, Some(query.to_vec())))
    }
}

/// Checks the head of a response. Returns how long HTTP caches have kept it, in seconds.
pub(crate) fn check_head(status: StatusCode, headers: &HeaderMap) -> Result<u32, HttpRefusal> {
    // A redirect isn't followed either: it could lead to any host.
    if status != StatusCode::OK {
        return Err(HttpRefusal::Status(status));
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case(DNS_MESSAGE) {
        return Err(HttpRefusal::MediaType);
    }
    if text(CONTENT_LENGTH).parse::<u64>().is_ok_and(|length| length > MAX_ANSWER_BYTES as u64) {
        return Err(HttpRefusal::TooLong);
    }
    Ok(age(text(AGE)))
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

    fn requests(host: Option<&str>, address: &str, by_get: bool) -> HttpRequests {
        let tls = TlsClient {
            connector: connector(Some(rustls::RootCertStore::empty()), None).unwrap(),
            name: None,
        };
        let client = HttpsClient { tls, host: host.map(str::to_owned), path: "/a/b%20c".to_owned(), by_get };
        client.requests_to(address.parse().unwrap())
    }

    #[test]
    fn request_has_the_host_the_path_and_the_query() {
        for (host, address, authority) in [
            (None, "192.0.2.1:443", "192.0.2.1"),
            (None, "[fe80::1%2]:8443", "[fe80::1]:8443"),
            (Some("dns.example"), "192.0.2.1:443", "dns.example"),
            (Some("dns.example"), "192.0.2.1:8443", "dns.example:8443"),
        ] {
            let (request, body) = requests(host, address, false).request(&[0, 1, 255]).unwrap();
            assert_eq!(request.uri(), &*format!("https://{authority}/a/b%20c"));
            let header = |name| request.headers()[name].to_str().unwrap();
            assert_eq!([header(ACCEPT), header(CONTENT_TYPE)], [DNS_MESSAGE; 2]);
            assert_eq!((request.method(), header(CONTENT_LENGTH)), (&Method::POST, "3"));
            assert_eq!((body.as_deref(), request.headers().len()), (Some(&[0, 1, 255][..]), 3));
            let (request, body) = requests(host, address, true).request(&[0, 1, 255]).unwrap();
            assert_eq!(request.uri(), &*format!("https://{authority}/a/b%20c?dns=AAH_"));
            assert_eq!((request.method(), request.headers().len(), body), (&Method::GET, 1, None));
        }
    }

    #[test]
    fn only_a_dns_message_with_status_200_is_an_answer() {
        let dns = Some(DNS_MESSAGE);
        for (status, media_type, length, age, expected) in [
            (200, dns, None, None, Ok(0)),
            (200, Some("Application/DNS-Message ; charset=x"), Some("65535"), Some("250"), Ok(250)),
            (200, dns, None, Some("-1"), Ok(0)),
            (200, dns, None, Some("+1"), Ok(0)),
            (200, dns, None, Some(""), Ok(0)),
            (200, dns, None, Some("99999999999999999999"), Ok(u32::MAX)),
            (200, dns, Some("65536"), None, Err("the body of the HTTP response has more than 65,535 bytes")),
            (
                200,
                None,
                None,
                None,
                Err("the content type of the HTTP response isn't application/dns-message"),
            ),
            (
                200,
                Some("text/html"),
                None,
                None,
                Err("the content type of the HTTP response isn't application/dns-message"),
            ),
            (204, dns, None, None, Err("the HTTP status is 204 No Content, and not 200 OK")),
            (302, dns, None, None, Err("the HTTP status is 302 Found, and not 200 OK")),
            (404, dns, None, None, Err("the HTTP status is 404 Not Found, and not 200 OK")),
            (503, None, None, None, Err("the HTTP status is 503 Service Unavailable, and not 200 OK")),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(CONTENT_TYPE, media_type), (CONTENT_LENGTH, length), (AGE, age)] {
                headers.extend(value.map(|value| (name, value.parse().unwrap())));
            }
            let found = check_head(StatusCode::from_u16(status).unwrap(), &headers);
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        }
    }
}
