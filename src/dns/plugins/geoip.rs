//! # Name
//!
//! *geoip* - gives queries labels about the place and the network of the client, from a database.
//!
//! # Description
//!
//! The database has MaxMind's format (`.mmdb`): the cities, countries, enterprises, ISPs and ASNs of MaxMind, and
//! databases of DB-IP. The plugin [*metadata*](#metadata) in the same block makes its labels known, for *log*,
//! *template* and *dnstap*. A label is empty if the database has no value for the client.
//!
//! | label | value |
//! |---|---|
//! | `geoip/city/name`, `geoip/country/name`, `geoip/continent/name` | the name in English |
//! | `geoip/country/code`, `geoip/continent/code` | the code, such as `GB` and `EU` |
//! | `geoip/country/is_in_european_union` | `true` or `false` |
//! | `geoip/subdivisions/code` | the codes of the client's regions, such as `ENG,CAM` |
//! | `geoip/latitude`, `geoip/longitude`, `geoip/timezone`, `geoip/postalcode` | such as `52.2242`, `0.1315`, `Europe/London`, `CB4` |
//! | `geoip/asn/number`, `geoip/asn/org` | the number and the owner of the autonomous system; `0` if there is none |
//!
//! The database is kept in memory, once for all blocks with the same file, and may have 512 MiB: raise the memory limit
//! of the Pod by twice its size. The file is looked at every 30 s, and read again after a change; if it can't be used,
//! the last one stays in use. Replace it by renaming a new file.
//!
//! Differences from CoreDNS: CoreDNS reads the file only with the Corefile. A label whose value has a wrong type is not
//! known; in CoreDNS none is known then.
//!
//! # Syntax
//!
//! Syntax: `geoip DBFILE`. Option:
//!
//! - `edns-subnet`: the client's address is that of the option EDNS Client Subnet (RFC 7871) in the query, if there is
//!   one. Any client can set it, and resolvers leave out the last bits.
//!
//! # Examples
//!
//! ```text
//! . {
//!     metadata
//!     geoip GeoLite2-City.mmdb
//!     log . "{remote} {name} {/geoip/country/code}"
//!     forward . 192.0.2.53
//! }
//! ```

pub mod database;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::setup::Setup;
use crate::dns::chain::labels::LabelSubject;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::{CorefileError, Directive};
use database::{Database, DatabaseError, Databases, FileId};

const NAME: &str = "geoip";
const OPTIONS: [&str; 1] = ["edns-subnet"];
const PREFIX: &str = "geoip/";
/// How often the file is checked for a change, as the Corefile by *reload*.
const INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct GeoIp {
    database: Arc<ArcSwap<Database>>,
    uses_subnet: bool,
}

/// The file of a block's database, for the task that reads it again after a change.
struct DatabaseFile {
    path: PathBuf,
    id: FileId,
    databases: Databases,
    database: Arc<ArcSwap<Database>>,
}

/// Returns what a block lacks for a label of this plugin.
pub(super) fn missing_for(label: &str, block: &[Directive]) -> Option<&'static str> {
    let is_missing = label.starts_with(PREFIX) && !block.iter().any(|line| line.name() == NAME);
    is_missing.then_some("the block has no geoip")
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let word = line.single_argument("the file of a database: geoip DBFILE")?;
    for option in line.options() {
        if option.name() != OPTIONS[0] {
            return Err(option.unknown(NAME, &OPTIONS));
        }
        option.no_arguments_or_block()?;
    }
    let uses_subnet = !line.options().is_empty();
    let path = setup.path(&word.text);
    let databases = setup.context.databases.clone();
    let opened = databases.open(&path);
    let (database, id) = opened.map_err(|error| word.error(format!("{}: it {error}", path.display())))?;
    let database = Arc::new(ArcSwap::new(database));
    let mut file = DatabaseFile { path, id, databases, database: Arc::clone(&database) };
    setup.add_task(move |_, stop| async move { file.run(&stop).await });
    setup.add_reusable(GeoIp { database, uses_subnet });
    Ok(())
}

#[async_trait]
impl Plugin for GeoIp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn label(&self, label: &str, subject: &LabelSubject) -> Option<String> {
        let label = label.strip_prefix(PREFIX)?;
        let subnet = subject.subnet.filter(|_| self.uses_subnet);
        self.database.load().label(label, subnet.unwrap_or(subject.client))
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        next.serve(request).await
    }
}

impl DatabaseFile {
    /// Reads the file again after each change, until the block ends.
    async fn run(&mut self, stop: &CancellationToken) {
        let mut ticks = interval_at(Instant::now() + INTERVAL, INTERVAL);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.refresh().await;
        }
    }

    async fn refresh(&mut self) {
        let (path, last, databases) = (self.path.clone(), self.id, self.databases.clone());
        let reading = spawn_blocking(move || {
            let id = FileId::of(&path).ok().filter(|id| *id != last)?;
            Some((id, databases.open(&path)))
        });
        // The task panics only because of a bug, which is logged.
        let Ok(Some((id, opened))) = reading.await else { return };
        let why = opened.as_ref().err().map(ToString::to_string);
        let is_news = self.databases.is_news(&self.path, id, why.clone());
        match opened {
            Ok((database, id)) => {
                self.database.store(database);
                self.id = id;
            }
            // A file that can't be read is tried again; one that isn't a database, after its next change.
            Err(DatabaseError::Io(_)) => {}
            Err(_) => self.id = id,
        }
        let path = self.path.display();
        match why {
            Some(why) if is_news => warn!("plugin/geoip: {path}: it {why}; the last database stays in use"),
            None if is_news => info!("plugin/geoip: {path}: read again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
