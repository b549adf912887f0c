//! Properties of the responses to arbitrary bytes on a connection for DNS over HTTPS, shared by the property test and
//! the fuzz target.

use crate::connection::ConnectionServer;

/// The maximum size of all responses to one input, in bytes: the inputs have some kilobytes.
const MAX_BYTES: usize = 4 << 20;

/// Sends the bytes as [`ConnectionServer::answers`] does. Returns the kind of outcome, or the violated property.
pub fn try_https(server: &ConnectionServer, bytes: &[u8], split: usize) -> Result<&'static str, String> {
    let responses = server.answers(bytes, split)?;
    kind(&responses).map_err(|rule| format!("{rule}\n{bytes:02x?}\n{responses:02x?}"))
}

/// Returns the kind of the first final response, or the violated property.
fn kind(mut responses: &[u8]) -> Result<&'static str, String> {
    if responses.len() > MAX_BYTES {
        return Err(format!("{} bytes in response", responses.len()));
    }
    while let Some(rest) = responses.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        responses = rest;
    }
    if responses.is_empty() {
        return Ok("no response");
    }
    if let Some(rest) = responses.strip_prefix(b"HTTP/1.") {
        return match rest.get(2..5) {
            Some(b"200") => Ok("an answer by HTTP/1.1"),
            Some(b"400" | b"404" | b"405" | b"408" | b"413" | b"414" | b"415" | b"431" | b"503" | b"500") => {
                Ok("an error by HTTP/1.1")
            }
            _ => Err("the status is one of those that the manual has".to_owned()),
        };
    }
    // The server's SETTINGS begin a connection of HTTP/2 (RFC 9113 section 3.4).
    match frames(responses) {
        Some(kinds) if kinds.first() != Some(&4) => Err("the first frame has settings".to_owned()),
        Some(kinds) if kinds.contains(&0) => Ok("an answer by HTTP/2"),
        Some(_) => Ok("no answer by HTTP/2"),
        None => Err("each frame is complete".to_owned()),
    }
}

/// Returns the kinds of the frames of HTTP/2 (RFC 9113 section 4.1); `None` if the last one is incomplete.
fn frames(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let ([high, middle, low, kind, ..], rest) = bytes.split_first_chunk::<9>()?;
        kinds.push(*kind);
        bytes = rest.get(u32::from_be_bytes([0, *high, *middle, *low]) as usize..)?;
    }
    Some(kinds)
}
