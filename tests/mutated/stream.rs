//! Properties of the answers to arbitrary bytes on a TCP connection, shared by the property test and the fuzz target.

use lb_linker::dns::net::Protocol;

use crate::connection::ConnectionServer;
use crate::question::check;

/// The maximum length of a query on a connection, in bytes.
const MAX_QUERY: usize = 4096;

/// Sends the bytes as [`ConnectionServer::answers`] does. Returns the kind of outcome, or the violated property.
pub fn try_stream(server: &ConnectionServer, bytes: &[u8], split: usize) -> Result<&'static str, String> {
    let answers = server.answers(bytes, split)?;
    check_answers(bytes, &answers).map_err(|rule| format!("{rule}\n{bytes:02x?}\n{answers:02x?}"))
}

/// Splits a stream into its messages (RFC 1035 section 4.2.2). Returns the rest, too: it begins with an incomplete
/// message, or with one that is longer than `limit`.
fn frames(mut bytes: &[u8], limit: usize) -> (Vec<&[u8]>, &[u8]) {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        if length > limit || rest.len() < length {
            break;
        }
        let (frame, rest) = rest.split_at(length);
        all.push(frame);
        bytes = rest;
    }
    (all, bytes)
}

fn check_answers(asked: &[u8], answers: &[u8]) -> Result<&'static str, String> {
    let (queries, rest) = frames(asked, MAX_QUERY);
    let (answers, incomplete) = frames(answers, usize::MAX);
    if !incomplete.is_empty() {
        return Err("each answer is complete".to_owned());
    }
    let mut next = answers.iter();
    for query in queries {
        let is_silent = matches!(check(query, None, Protocol::Tcp), Ok(None));
        // No query waits for an upstream, so the answers have the order of the queries.
        let answer = if is_silent { None } else { next.next().copied() };
        check(query, answer, Protocol::Tcp)?;
    }
    if next.next().is_some() {
        return Err("each answer belongs to a query".to_owned());
    }
    Ok(match (answers.len(), rest.is_empty()) {
        (0, _) => "no answer",
        (_, true) => "answers",
        (_, false) => "answers, and a rest",
    })
}
