//! Properties of the DNS messages in arbitrary bodies of gRPC, shared by the property test and the fuzz target.

use lb_linker::dns::message::grpc::{GrpcError, MAX_BODY_BYTES, decode, encode};

/// Bodies with one field, with fields of other numbers and types, with a long message, with no message, and with two.
#[allow(dead_code, reason = "the fuzz target has them in files")]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let message = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";
    let plain = encode(message);
    let others = b"\x10\x96\x01\x19abcdefgh\x22\x02xy\x2d1234\xf8\xff\xff\xff\x0f\x01";
    let mut fields = [&plain, &others[..], &plain[5..]].concat();
    fields[4] = u8::try_from(fields.len() - 5).unwrap();
    vec![
        ("plain", plain.clone()),
        ("fields", fields),
        ("long", encode(&message.repeat(20))),
        ("nothing", vec![0; 5]),
        ("compressed", [&[1], &plain[1..]].concat()),
        ("two", plain.repeat(2)),
    ]
}

/// Decodes a body as it is, and with the right length in front. Returns the kind of outcome of the body as it is, or if
/// `mends_length` of the other one, or the violated property.
pub fn try_body(body: &[u8], mends_length: bool) -> Result<&'static str, String> {
    let as_it_is = kind(body)?;
    let mut mended = body.to_vec();
    if let (Some(length), Ok(right)) = (mended.get_mut(1..5), u32::try_from(body.len().saturating_sub(5))) {
        length.copy_from_slice(&right.to_be_bytes());
    }
    let mended = kind(&mended)?;
    Ok(if mends_length { mended } else { as_it_is })
}

fn kind(body: &[u8]) -> Result<&'static str, String> {
    let message = match decode(body) {
        Ok(message) => message,
        Err(GrpcError::Compressed) => return Ok("compressed"),
        Err(GrpcError::TooLarge) => return Ok("too large"),
        Err(GrpcError::Incomplete) => return Ok("incomplete"),
        Err(GrpcError::Several) => return Ok("several"),
        Err(GrpcError::Malformed) => return Ok("malformed"),
    };
    let again = encode(message);
    let rule = if body.len() > MAX_BODY_BYTES {
        "no message in a body that is too large"
    } else if !body.as_ptr_range().contains(&message.as_ptr()) && !message.is_empty() {
        "the message is a part of the body"
    } else if decode(&again) != Ok(message) {
        "the message stays the same if it is encoded and decoded"
    } else if again.len() > body.len() && !message.is_empty() {
        "the encoded message is the shortest"
    } else {
        return Ok(if message.is_empty() { "nothing" } else { "a message" });
    };
    Err(format!("{rule}: {body:02x?}"))
}
