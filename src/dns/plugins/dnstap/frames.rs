//! Frame Streams, which carry the messages of dnstap over a connection.
//!
//! <https://farsightsec.github.io/fstrm/> describes the format. Integers are in network byte order.

/// The content type of dnstap.
pub const CONTENT_TYPE: &[u8] = b"protobuf:dnstap.Dnstap";
/// The maximum length of a control frame, in bytes.
const MAX_CONTROL: usize = 512;
/// The maximum length of a content type, in bytes.
const MAX_CONTENT_TYPE: usize = 256;
/// The field with a content type, the only one of a control frame.
const CONTENT_TYPE_FIELD: u32 = 1;

/// The kinds of control frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Accept = 1,
    Start = 2,
    Stop = 3,
    Ready = 4,
    Finish = 5,
}

/// Why a control frame of a sink isn't accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("it sends data, and not a control frame of Frame Streams")]
    NoControl,
    #[error("its control frame has {0} bytes, and 4 to {MAX_CONTROL} are allowed")]
    Length(u32),
    #[error("its control frame is malformed")]
    Malformed,
    #[error("its control frame has the type {found}, and {expected:?} is expected")]
    Kind { found: u32, expected: Control },
    #[error("it doesn't take the content type protobuf:dnstap.Dnstap")]
    ContentType,
}

/// Returns a control frame; READY and START name the content type.
#[must_use]
pub fn control(kind: Control) -> Vec<u8> {
    let mut body = (kind as u32).to_be_bytes().to_vec();
    if matches!(kind, Control::Ready | Control::Start) {
        body.extend(CONTENT_TYPE_FIELD.to_be_bytes());
        body.extend(length(CONTENT_TYPE));
        body.extend(CONTENT_TYPE);
    }
    // A length of 0 marks a control frame.
    [&[0; 4], &length(&body)[..], &body].concat()
}

/// Returns the length of the control frame that begins with these bytes, without them.
///
/// # Errors
/// If it isn't a control frame, or is too long.
pub fn control_length(start: [u8; 8]) -> Result<usize, FrameError> {
    let [a, b, c, d, length @ ..] = start;
    if [a, b, c, d] != [0; 4] {
        return Err(FrameError::NoControl);
    }
    let length = u32::from_be_bytes(length);
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if (4..=MAX_CONTROL).contains(&bytes) { Ok(bytes) } else { Err(FrameError::Length(length)) }
}

/// Checks the control frame with this body. An ACCEPT has to take the content type of dnstap; without any type, it
/// takes all.
///
/// # Errors
/// If the frame isn't the expected one.
pub fn check_control(body: &[u8], expected: Control) -> Result<(), FrameError> {
    let (found, mut fields) = number(body)?;
    if found != expected as u32 {
        return Err(FrameError::Kind { found, expected });
    }
    let (mut types, mut is_taken) = (0, false);
    while !fields.is_empty() {
        let (field, rest) = number(fields)?;
        let (length, rest) = number(rest)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if field != CONTENT_TYPE_FIELD || length > MAX_CONTENT_TYPE {
            return Err(FrameError::Malformed);
        }
        let (content_type, rest) = rest.split_at_checked(length).ok_or(FrameError::Malformed)?;
        types += 1;
        is_taken |= content_type == CONTENT_TYPE;
        fields = rest;
    }
    if expected == Control::Accept && types > 0 && !is_taken {
        return Err(FrameError::ContentType);
    }
    Ok(())
}

fn number(bytes: &[u8]) -> Result<(u32, &[u8]), FrameError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(FrameError::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

fn length(bytes: &[u8]) -> [u8; 4] {
    // What is sent is far shorter.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut body = (Control::Accept as u32).to_be_bytes().to_vec();
        for (field, content) in fields {
            body.extend(field.to_be_bytes());
            body.extend(length(content));
            body.extend(*content);
        }
        body
    }

    #[test]
    fn control_frames_have_the_bytes_of_frame_streams() {
        assert_eq!(control(Control::Stop), [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3]);
        let ready = control(Control::Ready);
        assert_eq!(ready[..20], [0, 0, 0, 0, 0, 0, 0, 34, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 22]);
        assert_eq!(ready[20..], *CONTENT_TYPE);
    }

    #[test]
    fn sinks_have_to_take_dnstap() {
        let other: &[u8] = b"text/plain";
        let long = [0; 257];
        for (body, expected) in [
            (accept(&[]), Ok(())),
            (accept(&[(1, CONTENT_TYPE)]), Ok(())),
            (accept(&[(1, other), (1, CONTENT_TYPE)]), Ok(())),
            (accept(&[(1, other)]), Err(FrameError::ContentType)),
            (accept(&[(2, CONTENT_TYPE)]), Err(FrameError::Malformed)),
            (accept(&[(1, &long)]), Err(FrameError::Malformed)),
            (accept(&[(1, CONTENT_TYPE)])[..20].to_vec(), Err(FrameError::Malformed)),
            (vec![0, 0, 1], Err(FrameError::Malformed)),
            (vec![0, 0, 0, 5], Err(FrameError::Kind { found: 5, expected: Control::Accept })),
        ] {
            assert_eq!(check_control(&body, Control::Accept), expected, "{body:?}");
        }
        assert_eq!(check_control(&[0, 0, 0, 5], Control::Finish), Ok(()));
    }

    #[test]
    fn lengths_of_control_frames_are_limited() {
        for (start, expected) in [
            ([0, 0, 0, 0, 0, 0, 0, 4], Ok(4)),
            ([0, 0, 0, 0, 0, 0, 2, 0], Ok(512)),
            ([0, 0, 0, 0, 0, 0, 2, 1], Err(FrameError::Length(513))),
            ([0, 0, 0, 0, 0, 0, 0, 3], Err(FrameError::Length(3))),
            ([0, 0, 0, 0, 255, 255, 255, 255], Err(FrameError::Length(u32::MAX))),
            (*b"HTTP/1.1", Err(FrameError::NoControl)),
        ] {
            assert_eq!(control_length(start), expected, "{start:?}");
        }
    }
}
