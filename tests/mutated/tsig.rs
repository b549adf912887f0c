//! Properties of the checks of signatures for arbitrary messages, shared by the property test and the fuzz target.

use std::sync::Arc;

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use lb_linker::dns::message::tsig::{Algorithm, Key, ReplyChecker, TsigError, TsigKeys, check_request};
use lb_linker::dns::message::zone_set::ZoneSet;

/// The time of all signatures, in seconds since 1970.
const TIME: u64 = 1_700_000_000;
/// The length of a header, in bytes.
const HEADER: usize = 12;

/// The keys of a server and of a client.
pub struct Signatures {
    keys: TsigKeys,
    /// The messages that are signed as a seed's, and may be accepted.
    signed: Vec<Vec<u8>>,
}

fn key(algorithm: Algorithm) -> Key {
    Key::new(&Name::from_ascii("xfr.example.").unwrap(), algorithm, b"secret").unwrap()
}

fn query(qtype: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 0x1234;
    message.add_query(Query::query(Name::from_ascii("example.org.").unwrap(), qtype));
    message
}

/// Returns a signed query, and the checker of its reply.
fn signed(message: &Message, algorithm: Algorithm, time: u64) -> (Vec<u8>, ReplyChecker) {
    let mut bytes = message.to_vec().unwrap();
    let checker = ReplyChecker::sign(Arc::new(key(algorithm)), &mut bytes, time);
    (bytes, checker)
}

/// Returns the query whose reply is checked, and the checker.
fn transfer() -> (Vec<u8>, ReplyChecker) {
    signed(&query(RecordType::AXFR), Algorithm::Sha256, TIME)
}

fn keys() -> TsigKeys {
    let mut keys = TsigKeys::new(ZoneSet::new([Name::root()]));
    keys.insert(key(Algorithm::Sha256));
    keys
}

/// Returns signed queries and replies.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let asked = query(RecordType::A);
    let mut with_edns = asked.clone();
    with_edns.set_edns(Edns::new());
    let transfer = transfer().0;
    let mut signer = check_request(&transfer, &keys(), TIME).signer.unwrap();
    let mut reply = query(RecordType::AXFR).to_vec().unwrap();
    reply[2] |= 0x80;
    let mut next = reply.clone();
    signer.sign(&mut reply, TIME);
    signer.sign(&mut next, TIME);
    vec![
        ("sha1", signed(&asked, Algorithm::Sha1, TIME).0),
        ("sha224", signed(&asked, Algorithm::Sha224, TIME).0),
        ("sha256", signed(&asked, Algorithm::Sha256, TIME).0),
        ("sha384", signed(&asked, Algorithm::Sha384, TIME).0),
        ("sha512", signed(&asked, Algorithm::Sha512, TIME).0),
        ("edns", signed(&with_edns, Algorithm::Sha256, TIME).0),
        ("late", signed(&asked, Algorithm::Sha256, TIME - 1000).0),
        ("transfer", transfer),
        ("reply", reply),
        ("next", next),
    ]
}

impl Signatures {
    pub fn start() -> Self {
        Self { keys: keys(), signed: seeds().into_iter().map(|(_, bytes)| bytes).collect() }
    }

    /// Checks a message as a request and as a reply. Returns the kind of outcome, or the violated property.
    pub fn try_message(&self, message: &[u8]) -> Result<&'static str, String> {
        let mut reply = message.to_vec();
        let as_reply = transfer().1.check(&mut reply, TIME);
        if as_reply.is_ok() {
            self.expect_signed(message)?;
            Message::from_vec(&reply).map_err(|error| format!("without its signature: {error}"))?;
        }
        let checked = check_request(message, &self.keys, TIME);
        if let Some(mut signer) = checked.signer {
            let mut reply = vec![0; HEADER];
            reply[..2].copy_from_slice(&message[..2]);
            reply[2] = 0x80;
            let length = HEADER + signer.length();
            signer.sign(&mut reply, TIME);
            if reply.len() != length {
                return Err(format!("{} bytes instead of {length}", reply.len()));
            }
            Message::from_vec(&reply).map_err(|error| format!("a signed reply: {error}"))?;
        }
        match checked.outcome {
            Ok(_) => self.expect_signed(message).map(|()| "accepted"),
            Err(_) if as_reply.is_ok() => Ok("accepted as a reply"),
            Err(TsigError::Malformed) => Ok("malformed"),
            Err(TsigError::BadSig) => Ok("BADSIG"),
            Err(TsigError::BadKey) => Ok("BADKEY"),
            Err(TsigError::BadTime) => Ok("BADTIME"),
            Err(error) => Ok(if error == TsigError::BadTrunc { "BADTRUNC" } else { "other" }),
        }
    }

    /// An accepted message differs from one that was signed only in its id and in the case of the names of its TSIG
    /// record.
    fn expect_signed(&self, message: &[u8]) -> Result<(), String> {
        let is_same = |signed: &Vec<u8>| signed[2..].eq_ignore_ascii_case(&message[2..]);
        if self.signed.iter().any(is_same) { Ok(()) } else { Err("a changed message is accepted".to_owned()) }
    }
}
