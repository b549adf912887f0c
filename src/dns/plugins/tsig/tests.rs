use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tracing::Level;

use super::*;
use crate::captured_log::CapturedLog;
use crate::dns::chain::handler::{EncodedReply, Handler};
use crate::dns::message::tsig::{Key, ReplyChecker};
use crate::dns::net::Protocol;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support::{TestServer, link};
use crate::dns::server::config::first_handler;
use crate::store::{Input, OnGone, Store};

/// `the secret of xfr.`, in Base64.
const SECRET: &str = "dGhlIHNlY3JldCBvZiB4ZnIu";
const KEY: &str = "secret xfr. dGhlIHNlY3JldCBvZiB4ZnIu";
const ANSWER: &str = "template IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}";

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn key(of: &str, secret: &[u8]) -> Arc<Key> {
    Arc::new(Key::new(&name(of), Algorithm::Sha256, secret).unwrap())
}

fn right_key() -> Arc<Key> {
    key("xfr.", b"the secret of xfr.")
}

fn handler(corefile: &str) -> Arc<Handler> {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    first_handler(corefile, &context).unwrap()
}

/// A plugin whose answers are kept.
const HOSTS: &str = "hosts {\n192.0.2.1 a.example\n}";

/// Returns the handler of a block with the plugin and this option.
fn block(option: &str) -> Arc<Handler> {
    handler(&format!("example.:53 {{\ntsig {{\n{KEY}\n{option}\n}}\n{HOSTS}\n}}\n"))
}

fn query(owner: &str, qtype: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 0x1234;
    message.add_query(Query::query(name(owner), qtype));
    message
}

async fn send(handler: &Handler, message: Vec<u8>, protocol: Protocol) -> EncodedReply {
    let client: SocketAddr = ([192, 0, 2, 9], 5353).into();
    handler.answer(message, client, None, protocol, true).await.unwrap()
}

/// Sends a query, signed with a key. Returns the decoded reply, and the outcome of the check of its signature.
async fn ask(
    handler: &Handler,
    query: &Message,
    key: Arc<Key>,
    protocol: Protocol,
) -> (Message, Result<(), TsigError>) {
    let mut message = query.to_vec().unwrap();
    let mut checker = ReplyChecker::sign(key, &mut message, now());
    let reply = send(handler, message, protocol).await;
    assert!(reply.wire_response.is_none(), "it isn't kept");
    let mut bytes = reply.bytes;
    let checked = checker.check(&mut bytes, now());
    (Message::from_vec(&bytes).unwrap(), checked)
}

#[tokio::test]
async fn signed_requests_get_signed_answers_and_unsigned_ones_kept() {
    let handler = block("");
    let asked = query("a.example.", RecordType::A);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        for _ in 0..2 {
            let (reply, checked) = ask(&handler, &asked, right_key(), protocol).await;
            assert_eq!((checked, reply.answers.len()), (Ok(()), 1));
            let unsigned = send(&handler, asked.to_vec().unwrap(), protocol).await;
            assert!(unsigned.wire_response.is_some());
            let unsigned = Message::from_vec(&unsigned.bytes).unwrap();
            assert_eq!((unsigned.answers.len(), unsigned.additionals.len()), (1, 0));
        }
    }
    // SERVFAIL, since no plugin follows that has the name.
    let (reply, checked) =
        ask(&handler, &query("b.example.", RecordType::A), right_key(), Protocol::Udp).await;
    assert_eq!((checked, reply.metadata.response_code), (Ok(()), ResponseCode::ServFail));
}

#[tokio::test]
async fn wrong_signatures_get_notauth_with_the_error() {
    for option in ["", "require all"] {
        let handler = block(option);
        let asked = query("a.example.", RecordType::A);
        for (key, code) in [(key("xfr.", b"other"), 16), (key("other.", b"the secret of xfr."), 17)] {
            let (reply, checked) = ask(&handler, &asked, key, Protocol::Udp).await;
            assert_eq!(checked, Err(TsigError::ByServer(code)));
            assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NotAuth, 0));
        }
        let mut late = asked.to_vec().unwrap();
        let mut checker = ReplyChecker::sign(right_key(), &mut late, now() - 1000);
        let mut reply = send(&handler, late, Protocol::Udp).await.bytes;
        assert_eq!(checker.check(&mut reply, now() - 1000), Err(TsigError::ByServer(18)), "it is signed");
        // A record follows the TSIG record.
        let mut message = asked.to_vec().unwrap();
        let _ = ReplyChecker::sign(right_key(), &mut message, now());
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        message[11] = 2;
        let reply = Message::from_vec(&send(&handler, message, Protocol::Udp).await.bytes).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
        assert!(reply.additionals.is_empty() && reply.edns.is_some());
    }
}

#[tokio::test]
async fn required_types_are_refused_without_a_signature() {
    use RecordType::{A, AAAA, TXT};
    for (option, required) in [
        ("", &[][..]),
        ("require none", &[]),
        ("require all", &[A, AAAA, TXT]),
        ("require A TXT", &[A, TXT]),
        ("require_opcode QUERY", &[A, AAAA, TXT]),
        ("require_opcode all", &[A, AAAA, TXT]),
        ("require_opcode none", &[]),
        ("require_opcode NOTIFY UPDATE\nrequire AAAA", &[AAAA]),
    ] {
        let handler = block(option);
        for qtype in [A, AAAA, TXT] {
            for _ in 0..2 {
                let mut asked = query("a.example.", qtype);
                asked.set_edns(Edns::new());
                let reply = send(&handler, asked.to_vec().unwrap(), Protocol::Udp).await;
                let is_kept = reply.wire_response.is_some();
                let says_why = String::from_utf8_lossy(&reply.bytes).contains("has to be signed");
                let reply = Message::from_vec(&reply.bytes).unwrap();
                let is_refused = reply.metadata.response_code == ResponseCode::Refused;
                assert_eq!(
                    (is_refused, says_why),
                    (required.contains(&qtype), is_refused),
                    "{option} {qtype}"
                );
                assert!(!(is_refused && is_kept), "{option} {qtype}");
                let (reply, checked) = ask(&handler, &asked, right_key(), Protocol::Udp).await;
                assert_eq!(checked, Ok(()));
                assert_ne!(reply.metadata.response_code, ResponseCode::Refused, "{option} {qtype}");
            }
        }
    }
}

#[tokio::test]
async fn signatures_outside_of_the_zones_are_ignored() {
    let handler = handler(&format!(".:53 {{\ntsig example. {{\n{KEY}\nrequire all\n}}\n{ANSWER}\n}}\n"));
    let asked = query("a.test.", RecordType::A);
    let (reply, checked) = ask(&handler, &asked, key("other.", b"x"), Protocol::Udp).await;
    assert_eq!((checked, reply.answers.len()), (Err(TsigError::Unsigned), 1));
    let (reply, checked) =
        ask(&handler, &query("a.example.", RecordType::A), right_key(), Protocol::Udp).await;
    assert_eq!((checked, reply.answers.len()), (Ok(()), 1));
}

#[tokio::test]
async fn answers_by_udp_leave_room_for_the_signature() {
    let addresses: Vec<String> = (1..=100).map(|last| format!("192.0.2.{last} many.example")).collect();
    let handler =
        handler(&format!("example.:53 {{\ntsig {{\n{KEY}\n}}\nhosts {{\n{}\n}}\n}}\n", addresses.join("\n")));
    let mut asked = query("many.example.", RecordType::A);
    for limit in [512, 600, 1232] {
        let mut edns = Edns::new();
        edns.set_max_payload(limit);
        asked.set_edns(edns);
        let mut message = asked.to_vec().unwrap();
        let mut checker = ReplyChecker::sign(right_key(), &mut message, now());
        let mut reply = send(&handler, message, Protocol::Udp).await.bytes;
        assert!(reply.len() <= usize::from(limit) && reply.len() > usize::from(limit) - 16 - 1);
        checker.check(&mut reply, now()).unwrap();
        let reply = Message::from_vec(&reply).unwrap();
        assert!(reply.metadata.truncation && reply.answers.len() > 10);
    }
}

#[tokio::test]
async fn cached_answers_are_signed_for_signed_requests_alone() {
    let handler = handler(&format!("example.:53 {{\ntsig {{\n{KEY}\n}}\ncache 30\n{ANSWER}\n}}\n"));
    let asked = query("a.example.", RecordType::A);
    for _ in 0..2 {
        let (reply, checked) = ask(&handler, &asked, right_key(), Protocol::Udp).await;
        assert_eq!((checked, reply.answers.len()), (Ok(()), 1));
        let unsigned = send(&handler, asked.to_vec().unwrap(), Protocol::Udp).await.bytes;
        assert_eq!(Message::from_vec(&unsigned).unwrap().additionals.len(), 0);
    }
}

#[tokio::test]
async fn alias_leads_no_unsigned_request_to_a_required_name() {
    let handler = handler(&format!(
        "open.:53 {{\ncache 30\ntemplate IN A {{\nanswer \"{{{{ .Name }}}} 60 IN CNAME a.example.\"\n}}\n}}\n\
         example.:53 {{\ntsig {{\n{KEY}\nrequire A\n}}\n{ANSWER}\n}}\n"
    ));
    let asked = query("a.open.", RecordType::A);
    // Signed and unsigned requests take turns: neither gets an answer that was kept for the other.
    for _ in 0..2 {
        let (reply, checked) = ask(&handler, &asked, right_key(), Protocol::Udp).await;
        assert_eq!((checked, reply.answers.len()), (Err(TsigError::Unsigned), 2), "{reply}");
        let unsigned = send(&handler, asked.to_vec().unwrap(), Protocol::Udp).await;
        let unsigned = Message::from_vec(&unsigned.bytes).unwrap();
        assert_eq!(unsigned.answers.len(), 1, "{unsigned}");
        let (reply, _) = ask(&handler, &asked, key("xfr.", b"other"), Protocol::Udp).await;
        assert_eq!(reply.answers.len(), 1, "{reply}");
    }
}

#[tokio::test]
async fn target_of_a_link_needs_the_signature_of_its_block() {
    let context = TestServer::corefile(&format!(
        "lb.internal {{\nlb_linker\n}}\n. {{\ntsig {{\n{KEY}\nrequire all\n}}\n{ANSWER}\n}}\n"
    ));
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    store.replace(None, vec![link("web", "t.example.")], vec![], &Default::default());
    store.set_known(Input::Services);
    let mut signed = context.clone();
    let mut message = query("web.default.lb.internal.", RecordType::A).to_vec().unwrap();
    let _ = ReplyChecker::sign(right_key(), &mut message, now());
    signed.request.message = Some(message.into());
    for _ in 0..2 {
        for (context, has_address) in [(&context, false), (&signed, true)] {
            let answer = context.ask("web.default.lb.internal. A").await;
            assert!(answer.contains("CNAME t.example."), "{answer}");
            assert_eq!(answer.contains("192.0.2.1"), has_address, "{answer}");
        }
    }
}

#[tokio::test]
async fn own_look_ups_need_no_signature() {
    let context = TestServer::block(&format!("tsig {{\n{KEY}\nrequire all\n}}\n{ANSWER}"));
    let (log, _guard) = CapturedLog::start(Level::WARN);
    assert_eq!(context.ask("a. A").await, "REFUSED | | |");
    let line = "refused A a. of client ";
    assert!(log.text().contains(line), "{}", log.text());
    let mut own = context.server.internal_request(context.request("a. A").query);
    let reply = crate::dns::chain::server::Server::serve(&mut own).await.unwrap();
    assert_eq!(reply.records.answers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_signatures_are_logged_once_a_minute() {
    let log = RefusalLog::default();
    let counted = [log.count(), log.count(), log.count()];
    assert_eq!(counted, [Some(1), None, None]);
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    assert_eq!(log.count(), Some(3));
}

#[test]
fn keys_are_read_from_lines_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.conf");
    let text = "# From tsig-keygen.\nkey \"One.\" {\n\talgorithm HMAC-SHA512;\n\tsecret \"AAAA\";\n};\n\
                /* Two\n keys */ key two { secret AA//; }; // in a line\n\
                key \"three\" { algorithm hmac-sha1. secret \"AAAB\" }";
    std::fs::write(&path, text).unwrap();
    let lines = format!("tsig a.example b.example {{\nsecret XFR {SECRET}\nsecrets {}\n}}", path.display());
    let builder = TestServer::builder(&lines);
    let keys = builder.tsig.unwrap();
    assert_eq!(keys.len(), 4);
    let found = |zone: &str| keys.for_zone(&name(zone)).map(|key| key.name().to_vec());
    assert_eq!(found("a.example.").unwrap(), b"\x03xfr\x00");
    assert_eq!(found("c.example."), None);
    assert_eq!(builder.files_read[0].0, path);
    let warnings: Vec<String> = builder.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, [format!("{}:8:1: hmac-sha1 is weak: use hmac-sha256", path.display())]);
    let empty = TestServer::builder("tsig {\nrequire all\n}");
    assert!(empty.tsig.unwrap().is_empty());
    assert_eq!(
        empty.warnings[0].to_string(),
        "Corefile:2:1: tsig has no key: a signed request is refused; add `secret NAME KEY` or `secrets FILE`"
    );
}

#[test]
fn invalid_lines_are_rejected_without_their_secrets() {
    let no_option = "tsig has no such option; its options are secret, secrets, require, require_opcode";
    let secret = "secret needs the name of a key, and its secret in Base64: secret NAME KEY";
    for (option, error) in [
        ("c2VjcmV0cw== x", format!("3:1: {no_option}")),
        ("secrte a c2VjcmV0cw==", "3:1: tsig has no such option; is it secret?".to_owned()),
        ("secret", format!("3:1: {secret}")),
        ("secret c2VjcmV0cw==", format!("3:1: {secret}")),
        ("secret a b c2VjcmV0cw==", format!("3:1: {secret}")),
        ("secret a c2VjcmV0cw", "3:10: the secret isn't Base64 with padding, as tsig-keygen prints it".to_owned()),
        ("secret a \"\"", "3:10: the secret isn't Base64 with padding, as tsig-keygen prints it; maybe a variable isn't set".to_owned()),
        ("secret c2VjcmV0..cw== a", "3:8: this isn't the name of a key, such as lb-key or example.org.key".to_owned()),
        ("secret . c2VjcmV0cw==", "3:8: this isn't the name of a key, such as lb-key or example.org.key".to_owned()),
        ("secret a c2VjcmV0cw== {\n}", "3:1: secret takes no braces".to_owned()),
        ("secret a AAAA\nsecret A. AAAA", "4:8: the block has a key a. already".to_owned()),
        ("secrets", "3:1: secrets needs a file with keys".to_owned()),
        ("secrets /none", "3:9: /none: can't be read: No such file or directory (os error 2)".to_owned()),
        ("require", "3:1: require needs a record type such as AXFR, or all or none alone".to_owned()),
        ("require axfr", "3:9: \"axfr\" isn't a record type such as AXFR, or all or none alone".to_owned()),
        (
            "require AXFR all",
            "3:14: \"all\" isn't a record type such as AXFR, or all or none alone".to_owned(),
        ),
        ("require A\nrequire AAAA", "4:1: require can be there only once in tsig".to_owned()),
        (
            "require_opcode PUSH",
            "3:16: \"PUSH\" isn't one of QUERY, IQUERY, STATUS, NOTIFY, UPDATE, or all or none alone"
                .to_owned(),
        ),
    ] {
        let found = TestServer::error(&format!("tsig {{\n{option}\n}}"));
        assert_eq!(found, format!("Corefile:{error}"), "{option}");
        assert!(!found.contains("c2Vj"), "{found}");
    }
    let twice = TestServer::error("tsig\ntsig");
    assert_eq!(twice, "Corefile:3:1: tsig can be there only once in a block, and it is on line 2 already");
}

#[test]
fn invalid_files_are_rejected_with_their_place() {
    let expected = "key \"NAME\" { algorithm hmac-sha256; secret \"SECRET\"; };";
    let known = "hmac-sha1, hmac-sha224, hmac-sha256, hmac-sha384, hmac-sha512";
    let one_each = format!("a key has one algorithm and one secret: {expected}");
    for (text, error) in [
        ("\n  c2Vj", format!("2:3: a key is expected here: {expected}")),
        ("key", "1:1: the name of a key is expected after this, and the file ends".to_owned()),
        ("key {", "1:5: the name of a key is expected here".to_owned()),
        ("key a..b {", "1:5: this isn't the name of a key, such as lb-key or example.org.key".to_owned()),
        ("key a", format!("1:1: the key has no {{: {expected}")),
        ("key a; {", format!("1:6: a {{ is expected here: {expected}")),
        ("key a {", format!("1:1: the key has no }}: {expected}")),
        ("key a { };", format!("1:1: the key has no secret: {expected}")),
        ("key a { c2Vj; };", format!("1:9: {one_each}")),
        ("key a {\n secret AAAA; secret c2Vj; };", format!("2:15: {one_each}")),
        ("key a { secret; };", "1:15: a secret in Base64 is expected here".to_owned()),
        ("key a { secret", "1:9: a secret in Base64 is expected after this, and the file ends".to_owned()),
        (
            "key a { secret \"c2Vj=\"; };",
            "1:16: the secret isn't Base64 with padding, as tsig-keygen prints it".to_owned(),
        ),
        ("key a { secret \"c2Vj\n\"; };", "1:16: this line ends before the quote is closed".to_owned()),
        ("key a { algorithm sha256; };", format!("1:19: this isn't one of {known}")),
        (
            "key a { algorithm hmac-md5.sig-alg.reg.int; };",
            format!("1:19: hmac-md5 isn't supported, because it is broken; use one of {known}"),
        ),
        ("/* é */ /* é\n", "1:9: the comment has no */".to_owned()),
    ] {
        let found = key_file::parse(&Path::new("keys").into(), text, 2).err().unwrap().to_string();
        assert_eq!(found, format!("keys:{error}"), "{text}");
        assert!(!found.contains("c2Vj"), "{found}");
    }
    let three = "key a { secret AAAA; };".repeat(3);
    let found = key_file::parse(&Path::new("keys").into(), &three, 2).err().unwrap().to_string();
    assert_eq!(found, "keys:1:47: a file has 2 keys at most");
}

#[test]
fn opcodes_of_notify_can_be_required_alone() {
    let builder = TestServer::builder(&format!("tsig {{\n{KEY}\nrequire_opcode NOTIFY IQUERY\n}}"));
    let plugin: &dyn std::any::Any = &**builder.plugins[0];
    let plugin: &Tsig = plugin.downcast_ref().unwrap();
    let asked = Query::query(name("example."), RecordType::SOA);
    assert!(plugin.requires(OpCode::Notify, &asked) && plugin.requires(OpCode::from_u8(1), &asked));
    assert!(!plugin.requires(OpCode::Query, &asked));
}
