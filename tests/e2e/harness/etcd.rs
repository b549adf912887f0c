//! The objects of a control plane in its etcd, by etcd's JSON gateway.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::EVENT_TIMEOUT;

/// A revision of etcd: JSON has no integers of 64 bits, so they are texts.
pub type Revision = String;

/// Objects by their keys, such as `/registry/services/specs/default/web`.
pub type Objects = BTreeMap<String, Object>;

#[derive(Debug)]
pub struct Object {
    /// Empty if only keys were asked for.
    pub value: ByteString,
    pub revision: Revision,
}

/// etcd's default for the maximum number of changes in a transaction.
const MAX_CHANGES: usize = 128;

/// Returns all objects of a control plane.
///
/// # Errors
/// If etcd doesn't answer.
pub fn objects(socket: &Path, keys_only: bool) -> io::Result<Objects> {
    #[derive(Deserialize)]
    struct Range {
        #[serde(default)]
        kvs: Vec<KeyValue>,
    }
    #[derive(Deserialize)]
    struct KeyValue {
        key: ByteString,
        #[serde(default)]
        value: ByteString,
        mod_revision: Revision,
    }
    // The end of the range is the first key without the prefix `/registry/`.
    let range = json!({"key": bytes("/registry/"), "range_end": bytes("/registry0"), "keys_only": keys_only});
    let found: Range = serde_json::from_value(ask(socket, "range", &range)?)?;
    let object = |KeyValue { key, value, mod_revision }| {
        (String::from_utf8_lossy(&key.0).into_owned(), Object { value, revision: mod_revision })
    };
    Ok(found.kvs.into_iter().map(object).collect())
}

/// Writes objects, or deletes those without a value. Returns the revision of each change, in their order.
///
/// # Errors
/// If etcd doesn't answer, or refuses.
pub fn write(socket: &Path, changes: &[(String, Option<ByteString>)]) -> io::Result<Vec<Revision>> {
    let mut revisions = Vec::new();
    for changes in changes.chunks(MAX_CHANGES) {
        let operation = |(key, value): &(String, Option<ByteString>)| match value {
            Some(value) => json!({"request_put": {"key": bytes(key), "value": value}}),
            None => json!({"request_delete_range": {"key": bytes(key)}}),
        };
        let operations: Vec<_> = changes.iter().map(operation).collect();
        let answer = ask(socket, "txn", &json!({"success": operations}))?;
        let revision = answer["header"]["revision"].as_str().ok_or(io::ErrorKind::InvalidData)?;
        revisions.resize(revisions.len() + changes.len(), revision.to_owned());
    }
    Ok(revisions)
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

fn ask(socket: &Path, what: &str, question: &Value) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let question = question.to_string();
    let length = question.len();
    // HTTP/1.0, so that the response isn't chunked.
    let head = format!("POST /v3/kv/{what} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + &question).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 OK") => Ok(serde_json::from_str(body)?),
        _ => Err(io::Error::other(format!("{what}: {answer}"))),
    }
}
