//! Properties of the control frames of a sink of *dnstap*, shared by the property test and the fuzz target.

use lb_linker::dns::plugins::dnstap::frames::{
    CONTENT_TYPE, Control, FrameError, check_control, control, control_length,
};

/// Reads an ACCEPT as a connection does. Returns the kind of outcome, or the violated property.
pub fn try_frame(bytes: &[u8]) -> Result<&'static str, String> {
    let Some((start, rest)) = bytes.split_first_chunk() else { return Ok("incomplete") };
    let length = match control_length(*start) {
        Ok(length) if length <= 512 => length,
        Ok(length) => return Err(format!("a control frame of {length} bytes is read")),
        Err(error) => return Ok(kind(error)),
    };
    let Some(body) = rest.get(..length) else { return Ok("incomplete") };
    match check_control(body, Control::Accept) {
        // Without a content type the sink takes any.
        Ok(()) if body.len() == 4 || body.windows(CONTENT_TYPE.len()).any(|part| part == CONTENT_TYPE) => {
            Ok("taken")
        }
        Ok(()) => Err(format!("{body:02x?} doesn't name the content type")),
        Err(error) => Ok(kind(error)),
    }
}

fn kind(error: FrameError) -> &'static str {
    match error {
        FrameError::NoControl => "no control frame",
        FrameError::Length(_) => "length",
        FrameError::Malformed => "malformed",
        FrameError::Kind { .. } => "kind",
        FrameError::ContentType => "content type",
    }
}

/// Returns control frames of sinks.
#[allow(dead_code)]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let accept = |types: &[&[u8]]| {
        let mut body = vec![0, 0, 0, 1];
        for content_type in types {
            body.extend([0, 0, 0, 1]);
            body.extend(u32::try_from(content_type.len()).unwrap().to_be_bytes());
            body.extend(*content_type);
        }
        [&[0; 4], &u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    };
    vec![
        ("accept", accept(&[CONTENT_TYPE])),
        ("any", accept(&[])),
        ("several", accept(&[b"text/plain", CONTENT_TYPE])),
        ("other", accept(&[b"text/plain"])),
        ("finish", control(Control::Finish)),
    ]
}
