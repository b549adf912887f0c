//! Properties of the queries that the bytes of a stream of DNS over QUIC contain, shared by the property test and the
//! fuzz target.

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::opt::EdnsCode;
use hickory_proto::serialize::binary::BinEncodable;
use lb_linker::dns::transport::quic::query_of;

/// The EDNS option edns-tcp-keepalive (RFC 7828).
const TCP_KEEPALIVE: u16 = 11;

/// Returns the kind of outcome for the bytes of a stream, or the violated property.
pub fn try_quic(bytes: &[u8]) -> Result<&'static str, String> {
    check(bytes, query_of(bytes.to_vec()).as_deref()).map_err(|rule| format!("{rule}\n{bytes:02x?}"))
}

fn check(bytes: &[u8], query: Option<&[u8]>) -> Result<&'static str, String> {
    let error = |rule: &str| Err(rule.to_owned());
    let Some((length, message)) = bytes.split_first_chunk() else {
        return if query.is_some() { error("a query has a length") } else { Ok("no length") };
    };
    let is_whole = usize::from(u16::from_be_bytes(*length)) == message.len();
    let decoded = Message::from_vec(message).ok();
    let has_keepalive = decoded.as_ref().and_then(|message| message.edns.as_ref()).is_some_and(|edns| {
        edns.options().as_ref().iter().any(|(code, _)| *code == EdnsCode::from(TCP_KEEPALIVE))
    });
    match (query, decoded) {
        (Some(query), _) if query != message || !is_whole => error("the query is the whole stream"),
        (Some([0, 0, ..]), _) if has_keepalive && has_plain_opt(message) => {
            error("a query has no edns-tcp-keepalive")
        }
        (Some([0, 0, ..]), _) => Ok("a query"),
        (Some(_), _) => error("the id of a query is 0"),
        (None, Some(decoded)) if is_whole && is_usual(&decoded, message) => error("a usual query is taken"),
        (None, _) if !is_whole => Ok("another length"),
        (None, _) => Ok("no query"),
    }
}

/// Returns whether a message may have an OPT record whose name, the root, isn't a pointer.
fn has_plain_opt(message: &[u8]) -> bool {
    message.windows(3).any(|bytes| bytes == [0, 0, 41])
}

/// Returns whether a message is a query with the id 0 and one question without compression, and has nothing that looks
/// like edns-tcp-keepalive.
fn is_usual(decoded: &Message, message: &[u8]) -> bool {
    let [question] = &decoded.queries[..] else { return false };
    let is_query = decoded.metadata.message_type == MessageType::Query && decoded.metadata.id == 0;
    let may_have_keepalive = message.windows(2).any(|bytes| bytes == TCP_KEEPALIVE.to_be_bytes());
    is_query
        && !may_have_keepalive
        && question.to_bytes().is_ok_and(|question| message[12..].starts_with(&question))
}
