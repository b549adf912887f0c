//! Properties of zones in arbitrary bytes of a primary server, shared by the property test and the fuzz target.

use lb_linker::dns::zone::memory::ZoneMemory;
use lb_linker::dns::zone::received::{TransferError, TransferReader};

const ORIGIN: &[u8] = b"\x07example\x03org\x00";

/// Reads the bytes as the TCP stream of a transfer of `example.org`, with any id. Returns the outcome, or the violated
/// property.
pub fn try_transfer(bytes: &[u8]) -> Result<&'static str, String> {
    let (mut reader, mut rest) = (TransferReader::new(ORIGIN, None, ZoneMemory::default()), bytes);
    let (mut is_complete, mut sent) = (false, 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let Some((message, after)) = after.split_at_checked(u16::from_be_bytes(*length).into()) else {
            break;
        };
        rest = after;
        sent += message.len();
        let read = reader.read(message);
        if is_complete && read.is_ok() {
            return Err("nothing follows the last SOA record".to_owned());
        }
        match read {
            Ok(is_last) => is_complete = is_last,
            Err(error) => return refused(&error),
        }
    }
    match reader.finish() {
        Err(TransferError::Incomplete) if !is_complete => Ok("incomplete"),
        Err(error) => refused(&error),
        Ok(_) if !is_complete => Err("a zone ends with its SOA record".to_owned()),
        // A record has 11 bytes at least.
        Ok(zone) if zone.number_of_records() > sent / 11 => {
            Err("a zone has the records that were sent".to_owned())
        }
        Ok(_) => Ok("zone"),
    }
}

fn refused(error: &TransferError) -> Result<&'static str, String> {
    let text = error.to_string();
    // A name has at most 255 octets, and each may take four characters.
    let is_short = text.len() < 1300 && !text.contains(char::is_control);
    if is_short { Ok("refused") } else { Err(text) }
}
