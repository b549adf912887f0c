//! # Name
//!
//! *file* - answers from zone files.
//!
//! # Description
//!
//! A zone file is one of RFC 1035, with `$ORIGIN`, `$TTL`, `$INCLUDE` (relative to the including file, 7 deep),
//! `$GENERATE` (65536 records a line at most) and data of any type in the form of RFC 3597. It is read when the block is built;
//! an error names file, line and column. A file that can't be opened then is a warning, its zone gets SERVFAIL, and it is
//! read when it appears; with `reload 0s` it is an error, and so is an included file that is missing.
//!
//! Names outside the zones go to the next plugin; without one, they are refused.
//!
//! With DO, answers have the RRSIG, NSEC and DS records of the file; nothing is signed here. The target of a CNAME
//! that the zone doesn't have is looked up in the block that is responsible for it, unless the query is for CNAME.
//!
//! Files are looked at once per `reload`, with all that they include. A changed zone is served if its serial differs, or
//! if the file before was read within 5 seconds of a write; a file with an error is logged, and the zone before stays.
//! Blocks and views with the same file and zone have one state of it: what one of them serves by its `reload` or
//! `reload_by_mtime`, all of them serve.
//!
//! Differences from CoreDNS: these are rejected, where CoreDNS serves them: a record outside the zone, a CNAME record
//! beside others, another SOA record, a TTL above 2^31-1, another class than IN, and more than 1000000 records, 256 MiB
//! or 1000 files in a zone. [differences.md](differences.md) has the differences in answers.
//!
//! # Syntax
//!
//! Syntax: `file FILE [ZONES...]`; further lines have further zones. Options, which also count for the lines after:
//!
//! - `reload DURATION`: the interval, 1m by default; `0s` is never. `reload_by_mtime`: any change of the file counts,
//!   also with the same serial.
//! - `fallthrough [ZONES...]`, for all lines: names that don't exist go to the next plugin; with zones, only names in
//!   these zones.
//! - `upstream` is accepted, and has no effect.
//!
//! # Examples
//!
//! ```text
//! example.org {
//!     file /etc/coredns/db.example.org {
//!         reload 30s
//!     }
//! }
//! ```

mod answer;
pub(super) mod served;
#[cfg(test)]
mod tests;
pub(super) mod zone_map;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::rr::Name;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::zone_state::TransferredZone;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::zone_set::ZoneSet;
pub(super) use answer::serve;
pub(super) use served::ZoneRegistry;
use served::{FileZone, Update};
use zone_map::ZoneMap;

const NAME: &str = "file";
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(60);
const OPTIONS: [&str; 4] = ["reload", "reload_by_mtime", "fallthrough", "upstream"];

#[derive(Debug)]
struct ZoneFiles {
    zones: ZoneMap,
    /// The files of the zones: a block that is built again serves the same ones.
    _files: Vec<Arc<FileZone>>,
    /// The zones in which names that don't exist fall through.
    fallthrough: ZoneSet,
}

/// The options that count for a line and for those after it.
struct Options {
    reload: Duration,
    by_mtime: bool,
    fallthrough: ZoneSet,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut options = Options { reload: RELOAD_INTERVAL, by_mtime: false, fallthrough: ZoneSet::default() };
    let (mut zones, mut files) = (ZoneMap::default(), Vec::<Arc<FileZone>>::new());
    for line in setup.lines {
        read_options(line, &mut options)?;
        let served = served_zones(setup, line, &options)?;
        for zone in &served {
            if zones.insert(Arc::clone(zone.served())).is_some() {
                let origin = zone.served().origin();
                let known = files.iter().find(|known| known.served().origin() == origin);
                let path = known.map(|known| known.path()).unwrap_or(zone.path()).display();
                return Err(line.error(format!("the zone {origin} has the file {path} already")));
            }
            files.push(Arc::clone(zone));
        }
        let (reload, by_mtime) = (options.reload, options.by_mtime);
        if !reload.is_zero() {
            setup.add_task(move |_, stop| served::watch(served, reload, by_mtime, stop));
        }
    }
    setup.add_reusable(ZoneFiles { zones, _files: files, fallthrough: options.fallthrough });
    Ok(())
}

/// Returns the zones of a line. Their file has been read, unless it is missing.
fn served_zones(
    setup: &mut Setup<'_>,
    line: &Directive,
    options: &Options,
) -> Result<Vec<Arc<FileZone>>, CorefileError> {
    let [word, names @ ..] = line.required_arguments("a file, such as db.example.org")? else {
        return Ok(Vec::new());
    };
    let path = setup.path(&word.text);
    // Opening a pipe would wait for its writer.
    let missing = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.is_file().then(|| File::open(&path).err()).flatten(),
        Err(error) => Some(error),
    };
    if let Some(error) = &missing {
        let text = format!("the zone file {} can't be read: {error}", path.display());
        if options.reload.is_zero() {
            return Err(word.error(text));
        }
        setup.builder.warnings.push(word.error(text + "; it is tried again"));
    }
    let mut served = Vec::new();
    for origin in setup.zones_or_own(names)?.all() {
        let zone = setup.context.zones.zone(path.clone(), origin.clone());
        if missing.is_none()
            && let Update::Failed { error, .. } = zone.update(options.by_mtime)
        {
            if zone.zone().is_none() {
                return Err(word.error(error));
            }
            setup.builder.warnings.push(word.error(format!("the zone before stays: {error}")));
        }
        served.push(zone);
    }
    Ok(served)
}

fn read_options(line: &Directive, options: &mut Options) -> Result<(), CorefileError> {
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "reload" => {
                let duration = option.single_argument("a duration such as 30s, or 0s for never")?;
                options.reload = duration.duration()?;
            }
            "reload_by_mtime" => {
                option.no_arguments()?;
                options.by_mtime = true;
            }
            "fallthrough" => options.fallthrough = zones_or_all(option.arguments())?,
            "upstream" => {}
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    Ok(())
}

#[async_trait]
impl Plugin for ZoneFiles {
    fn name(&self) -> &'static str {
        NAME
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        self.zones.transferred(origin)
    }

    fn transferred_origins(&self) -> Vec<Name> {
        self.zones.origins()
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        serve(&self.zones, &self.fallthrough, NAME, request, next).await
    }
}
