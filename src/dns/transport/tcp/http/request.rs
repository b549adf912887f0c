//! What a request of DNS over HTTPS asks for (RFC 8484 section 4.1).

use data_encoding::BASE64URL_NOPAD;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap};
use hyper::{Method, Request, StatusCode, Version};

use super::answer::{Problem, media_type};
use crate::dns::message::https;
use crate::dns::transport::connections::activity::query::NoAnswer;

/// An HTTP error, with one sentence for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub sentence: &'static str,
}

impl Refusal {
    const fn new(status: StatusCode, sentence: &'static str) -> Self {
        Self { status, sentence }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let status = match problem {
            Problem::NoQuery => StatusCode::BAD_REQUEST,
            Problem::Late => StatusCode::REQUEST_TIMEOUT,
            Problem::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Problem::Unanswered(NoAnswer::Dropped) => StatusCode::INTERNAL_SERVER_ERROR,
            Problem::Ending | Problem::Unanswered(NoAnswer::Busy) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, problem.sentence())
    }
}

/// Where the query of a request is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QuerySource<B> {
    /// In the parameter `dns`.
    Parameter(Vec<u8>),
    /// In the body.
    Body(B),
}

/// Returns where the query of a request is.
pub(super) fn query_source<B>(request: Request<B>) -> Result<QuerySource<B>, Refusal> {
    // RFC 9112 section 3.2.
    if request.version() == Version::HTTP_11 && request.headers().get_all(HOST).iter().count() != 1 {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "HTTP/1.1 needs one header Host."));
    }
    if request.uri().path() != https::PATH {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "The path for DNS queries is /dns-query."));
    }
    match *request.method() {
        Method::GET | Method::HEAD => {
            parameter(request.uri().query().unwrap_or_default()).map(QuerySource::Parameter)
        }
        Method::POST => check_body(request.headers()).map(|()| QuerySource::Body(request.into_body())),
        _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "DNS queries are made by GET or POST.")),
    }
}

fn parameter(query: &str) -> Result<Vec<u8>, Refusal> {
    let bad = |sentence| Err(Refusal::new(StatusCode::BAD_REQUEST, sentence));
    let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("dns="));
    match (values.next(), values.next()) {
        (None, _) => bad("The parameter dns, with the query in base64url, is missing."),
        (Some(_), Some(_)) => bad("There is more than one parameter dns."),
        (Some(value), None) => match BASE64URL_NOPAD.decode(value.as_bytes()) {
            Ok(message) => Ok(message),
            Err(_) => bad("The parameter dns isn't base64url without padding."),
        },
    }
}

fn check_body(headers: &HeaderMap) -> Result<(), Refusal> {
    if !media_type(headers).eq_ignore_ascii_case(https::MEDIA_TYPE) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "The body has to be a DNS message, with the content type application/dns-message.",
        ));
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > https::MAX_MESSAGE_BYTES as u64) {
        return Err(Problem::TooLarge.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(request: &str, headers: &[(&str, &str)]) -> Result<QuerySource<()>, u16> {
        let (method, uri) = request.split_once(' ').unwrap();
        let mut builder = Request::builder().method(method).uri(uri).header(HOST, "x");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        query_source(builder.body(()).unwrap()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn query_is_in_the_parameter_or_in_the_body() {
        let parameter = |bytes: &[u8]| Ok(QuerySource::Parameter(bytes.to_vec()));
        for (request, expected) in [
            ("GET /dns-query?dns=AAH_-w", parameter(&[0, 1, 255, 251])),
            ("HEAD /dns-query?dns=AAH_-w", parameter(&[0, 1, 255, 251])),
            ("GET https://dns.example/dns-query?a=b&dns=AA&c", parameter(&[0])),
            ("GET /dns-query?dns=", parameter(&[])),
            ("GET /dns-query", Err(400)),
            ("GET /dns-query?dn=AA&xdns=AA", Err(400)),
            ("GET /dns-query?dns=AA&dns=AA", Err(400)),
            ("GET /dns-query?dns=AA==", Err(400)),
            ("GET /dns-query?dns=AAH/+w", Err(400)),
            ("GET /dns-query?dns=A", Err(400)),
            ("GET /dns-query/?dns=AA", Err(404)),
            ("GET /?dns=AA", Err(404)),
            ("POST /resolve", Err(404)),
            ("PUT /dns-query?dns=AA", Err(405)),
            ("OPTIONS *", Err(404)),
        ] {
            assert_eq!(source(request, &[]), expected, "{request}");
        }
    }

    #[test]
    fn http_1_1_needs_one_header_host() {
        for (version, hosts, expected) in [
            (Version::HTTP_11, 0, Err(400)),
            (Version::HTTP_11, 1, Ok(QuerySource::Parameter(vec![0]))),
            (Version::HTTP_11, 2, Err(400)),
            (Version::HTTP_10, 0, Ok(QuerySource::Parameter(vec![0]))),
            (Version::HTTP_2, 0, Ok(QuerySource::Parameter(vec![0]))),
        ] {
            let builder = Request::builder().version(version).uri("/dns-query?dns=AA");
            let builder = (0..hosts).fold(builder, |builder, _| builder.header(HOST, "x"));
            let found = query_source(builder.body(()).unwrap()).map_err(|refusal| refusal.status.as_u16());
            assert_eq!(found, expected, "{version:?} {hosts}");
        }
    }

    #[test]
    fn body_needs_the_content_type_and_a_size_within_the_maximum() {
        for (media_type, length, expected) in [
            (Some("application/dns-message"), "12", Ok(QuerySource::Body(()))),
            (Some("Application/DNS-Message; charset=x"), "65535", Ok(QuerySource::Body(()))),
            (Some("application/dns-message"), "65536", Err(413)),
            (Some("application/dns-message"), "100000000", Err(413)),
            (Some("application/dns-json"), "12", Err(415)),
            (Some("application/dns-messages"), "12", Err(415)),
            (None, "12", Err(415)),
        ] {
            let media_type = media_type.map(|text| ("content-type", text));
            let headers: Vec<_> = media_type.into_iter().chain([("content-length", length)]).collect();
            assert_eq!(source("POST /dns-query", &headers), expected, "{headers:?}");
        }
    }
}
