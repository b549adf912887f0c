//! Copies Services directly into etcd, as JSON, which the API server can decode.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::api::{Access, Connection};
use crate::dns::host;
use crate::objects::{TARGETS, namespace, services};

/// The number of links per transaction: each link has two objects, and etcd allows 128 operations.
const BATCH: usize = 50;

/// Creates the links with these numbers, and their external targets, as copies of link 0 and its external target.
pub fn make(access: &Access, etcd: &Path, links: Range<usize>) {
    let mut api = access.connect();
    let mut read = |namespace: &str, name: &str| {
        let object = api.json("GET", &format!("{}/{name}", services(namespace)), "");
        let mut text = without_assigned_fields(object).to_string();
        // Other parts may have changed the target.
        let target =
            text.split('"').find(|word| word.ends_with(".example.com")).expect("a target").to_owned();
        text = text.replace(&target, "the-target");
        text
    };
    let balancer = read(&namespace(0), "svc-0");
    let target = read(TARGETS, &format!("svc-0-{}-ext", namespace(0)));
    let uid_of = |text: &str| {
        let object: Value = serde_json::from_str(text).expect("an object");
        object["metadata"]["annotations"]["linker.hsj.com/service-uid"].as_str().map(ToOwned::to_owned)
    };
    // The external target records the uid of its Service.
    let recorded = uid_of(&target).expect("the uid of the Service");
    let mut etcd = Connection::unix(etcd);
    let (since, all) = (Instant::now(), links.len());
    let numbers: Vec<usize> = links.collect();
    for (batch, numbers) in numbers.chunks(BATCH).enumerate() {
        let puts: Vec<Value> = numbers
            .iter()
            .flat_map(|link| {
                let (name, service_uid) = (format!("svc-{link}"), uid());
                let target = target.replace(&recorded, &service_uid);
                [
                    put(&namespace(*link), &name, copy(&balancer, *link, &service_uid)),
                    put(TARGETS, &format!("{name}-{}-ext", namespace(*link)), copy(&target, *link, &uid())),
                ]
            })
            .collect();
        etcd.must("POST", "/v3/kv/txn", &json!({"success": puts}).to_string());
        let done = (batch + 1) * BATCH;
        if done.is_multiple_of(10_000) {
            eprintln!("{done} of {all} links copied, {:.0} s", since.elapsed().as_secs_f64());
        }
    }
}

/// Removes or replaces the fields that the API server assigns: the resource version, the UID, and the cluster IP, which
/// must be unique.
fn without_assigned_fields(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.insert("uid".to_owned(), "the-uid".into());
    }
    if object["spec"]["clusterIP"].is_string() {
        object["spec"]["clusterIP"] = "None".into();
        object["spec"]["clusterIPs"] = json!(["None"]);
    }
    object
}

fn copy(text: &str, link: usize, uid: &str) -> String {
    text.replace("svc-0", &format!("svc-{link}"))
        .replace("team-0", &namespace(link))
        .replace("the-target", &host(0, link))
        .replace("the-uid", uid)
}

fn uid() -> String {
    let digits = format!("{:032x}", rand::random::<u128>());
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

fn put(namespace: &str, name: &str, object: String) -> Value {
    let key = format!("/registry/services/specs/{namespace}/{name}");
    json!({"requestPut": {"key": base64(key.as_bytes()), "value": base64(object.as_bytes())}})
}

/// Encodes bytes in Base64 (RFC 4648 section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            let letter = if digit > chunk.len() { '=' } else { DIGITS[value as usize].into() };
            let _ = text.write_char(letter);
        }
    }
    text
}
