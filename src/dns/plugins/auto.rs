//! # Name
//!
//! *auto* - answers from the zone files of a directory.
//!
//! # Description
//!
//! Each file whose name matches becomes a zone, as in *file*: also files in directories below, 16 deep at most, but
//! nothing whose name begins with two dots, as in ConfigMaps, and not through symbolic links to directories. A file that comes, goes or changes is followed at once if it is
//! directly in the directory, and otherwise within `reload`. A file with an error is logged, and doesn't become a zone;
//! if it was one, the zone before stays. Names outside the zones found go to the next plugin.
//!
//! Difference from CoreDNS: 10000 zones with 1000000 records in all are served at most, of 200000 files.
//!
//! # Syntax
//!
//! Syntax: `auto [ZONES...]`; files of zones outside **ZONES** aren't used. Options:
//!
//! - `directory DIR [REGEXP TEMPLATE]`: a file whose name matches **REGEXP** (`db\.(.*)` by default) has the zone
//!   **TEMPLATE** (`{1}` by default), in which `{1}` stands for the first group. Of two files with the same zone, the first
//!   one by path is used.
//! - `reload DURATION`: the interval, 1m by default; `0s` is never. `upstream` is accepted, and has no effect.
//!
//! # Examples
//!
//! ```text
//! . {
//!     auto example.org example.net {
//!         directory /etc/coredns/zones "db\.(.*)" {1}
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

mod directory;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::rr::Name;
use regex::Regex;

use super::file::{RELOAD_INTERVAL, serve};
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::zone_state::TransferredZone;
use crate::dns::corefile::arguments::{MAX_REGEX, regex_error_text};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::zone_set::ZoneSet;
use directory::{Directory, Pattern};

const NAME: &str = "auto";
const OPTIONS: [&str; 3] = ["directory", "reload", "upstream"];

#[derive(Debug)]
struct Auto(Arc<Directory>);

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let origins = setup.zones_or_own(line.arguments())?;
    let (mut found, mut reload) = (None, RELOAD_INTERVAL);
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "directory" => found = Some(directory(setup, option)?),
            "reload" => reload = interval(option)?,
            "upstream" => {}
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    let place = line.position().clone();
    let (path, pattern, warning) =
        found.ok_or_else(|| line.error("auto needs the option directory, such as: directory /etc/zones"))?;
    setup.builder.warnings.extend(warning);
    let directory = Arc::new(Directory::new(path, pattern, origins, setup.context.zones.clone()));
    let problems = directory.refresh().problems;
    setup.builder.warnings.extend(problems.into_iter().map(|problem| place.error(problem)));
    setup.add_reusable(Auto(Arc::clone(&directory)));
    if !reload.is_zero() {
        setup.add_task(move |_, stop| directory::watch(directory, reload, stop));
    }
    Ok(())
}

fn interval(option: &Directive) -> Result<Duration, CorefileError> {
    option.single_argument("a duration such as 30s, or 0s for never")?.duration()
}

/// Returns the path, the pattern of file names, and a warning about a directory that doesn't exist.
fn directory(
    setup: &Setup<'_>,
    option: &Directive,
) -> Result<(PathBuf, Pattern, Option<CorefileError>), CorefileError> {
    let (word, pattern) = match option.at_most(3)? {
        [word] => (word, Pattern::default()),
        [word, regex, template] => {
            if regex.text.len() > MAX_REGEX {
                return Err(regex.error(format!("the expression has more than {MAX_REGEX} bytes")));
            }
            let compiled = Regex::new(&regex.text)
                .map_err(|error| regex.unexpected(&format!("an expression: {}", regex_error_text(&error))))?;
            if compiled.captures_len() < 2 {
                return Err(regex.error("the expression needs a group, such as db[.](.*)"));
            }
            (word, Pattern::new(compiled, &template.text))
        }
        _ => return Err(option.missing_argument("a directory, or a directory, a REGEXP and a TEMPLATE")),
    };
    let path = setup.path(&word.text);
    let warning = match std::fs::read_dir(&path) {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some(word.error(format!("the directory {} doesn't exist yet", path.display())))
        }
        Err(error) => return Err(word.error(format!("can't read {}: {error}", path.display()))),
    };
    Ok((path, pattern, warning))
}

#[async_trait]
impl Plugin for Auto {
    fn name(&self) -> &'static str {
        NAME
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        self.0.zones().transferred(origin)
    }

    fn transferred_origins(&self) -> Vec<Name> {
        self.0.zones().origins()
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let zones = self.0.zones();
        serve(&zones, &ZoneSet::default(), NAME, request, next).await
    }
}
