//! Properties of databases of the plugin *geoip*, shared by the property test and the fuzz target.

use std::net::IpAddr;

use lb_linker::dns::plugins::geoip::database::{Database, DatabaseError, LABELS};

/// The maximum length of a value, in bytes: the crate maxminddb reads no more of a record.
const MAX_VALUE: usize = 2 << 20;

/// Addresses in the networks of the seeds, and outside.
const ADDRESSES: [&str; 5] = ["127.0.0.1", "81.2.69.142", "203.0.113.1", "2001:db8::1", "::"];

/// Reads a database, and looks all labels up. Returns the kind of outcome, or the violated property.
pub fn try_database(bytes: &[u8]) -> Result<&'static str, String> {
    let database = match Database::parse(bytes.to_vec()) {
        Ok(database) => database,
        Err(DatabaseError::Type(_)) => return Ok("another type"),
        Err(DatabaseError::Format(_)) => return Ok("wrong"),
        Err(DatabaseError::Io(error)) => return Err(format!("no file is read, but: {error}")),
    };
    let (mut known, mut lost) = (0, 0);
    for address in ADDRESSES {
        let address: IpAddr = address.parse().unwrap();
        for (label, schema, ..) in LABELS {
            match database.label(label, address) {
                Some(value) if schema != database.schema() => return Err(format!("{label} is {value:?}")),
                Some(value) if value.len() > MAX_VALUE => return Err(format!("{label} is long")),
                Some(_) => known += 1,
                None if schema == database.schema() => lost += 1,
                None => {}
            }
        }
    }
    Ok(if known == 0 || lost > 0 { "damaged" } else { "labels" })
}
