//! The address of an API server.

use axum::http::Uri;

/// The maximum length of the URL of an API server in bytes. kube panics at URLs of requests of more than 65,534 bytes.
const MAX_SERVER_LENGTH: usize = 2048;

/// Returns the URL of a server, as `DefaultServerURL` of kubectl's client-go does: a host without a scheme is asked by
/// HTTP, also if the kubeconfig has an authority. `None` if it isn't a server.
#[must_use]
pub fn server_url(server: &str) -> Option<String> {
    if server.len() > MAX_SERVER_LENGTH {
        return None;
    }
    if server.contains("://") {
        return server.parse().is_ok_and(|uri| is_server(&uri)).then(|| server.to_owned());
    }
    let url = format!("http://{server}");
    let is_host = |uri: &Uri| is_server(uri) && uri.path_and_query().is_none_or(|path| path == "/");
    url.parse().is_ok_and(|uri| is_host(&uri)).then_some(url)
}

fn is_server(uri: &Uri) -> bool {
    let (Some("http" | "https"), Some(host), Some(authority)) =
        (uri.scheme_str(), uri.host(), uri.authority())
    else {
        return false;
    };
    let address = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = address.strip_prefix(host).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
    !host.is_empty() && port.is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_without_a_scheme_is_asked_by_http() {
        let long = format!("https://{}", "a".repeat(MAX_SERVER_LENGTH));
        for (server, expected) in [
            ("https://192.0.2.1:6443", Some("https://192.0.2.1:6443")),
            ("http://[2001:db8::1]:8001/k8s/clusters/c", Some("http://[2001:db8::1]:8001/k8s/clusters/c")),
            ("127.0.0.1:6443", Some("http://127.0.0.1:6443")),
            ("localhost:6443", Some("http://localhost:6443")),
            ("localhost", Some("http://localhost")),
            ("[::1]:6443", Some("http://[::1]:6443")),
            ("localhost/", Some("http://localhost/")),
            ("localhost/path", None),
            ("/path", None),
            ("", None),
            (":6443", None),
            ("https://", None),
            ("https:///path", None),
            ("ftp://192.0.2.1", None),
            ("unix:///run/api.sock", None),
            ("192.0.2.1:port", None),
            ("a b", None),
            (&long, None),
        ] {
            assert_eq!(server_url(server).as_deref(), expected, "{server}");
        }
    }
}
