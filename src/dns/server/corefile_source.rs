//! Reads the Corefile from a file or from the flags.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hickory_proto::rr::Name;
use parking_lot::Mutex;

use crate::dns::corefile::{BlockSource, CorefileError, FileSources, Position, parse};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::plugins::link_zones::link_zones;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::config::{Configuration, build_all, build_blocks, cluster_zones, text_of};

const BUILT_IN: &str = "(built-in Corefile)";

#[derive(Clone, Debug)]
pub(crate) enum CorefileSource {
    /// A file, which is read again at each reload.
    File(PathBuf),
    /// The built-in Corefile, made from the flags.
    BuiltIn(String),
}

/// The zones that decide about names and targets of links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorefileZones {
    pub links: Vec<LinkZone>,
    /// The zones of the cluster's own names, beside `--cluster-domain`.
    pub cluster: Vec<Name>,
}

/// A parsed Corefile, with imports and variables expanded.
pub(crate) struct LoadedCorefile {
    path: PathBuf,
    blocks: Vec<BlockSource>,
    variables: BTreeSet<String>,
}

/// Returns a position as the beginning of an error message. For the built-in Corefile, whose lines the user doesn't see,
/// it is the flag.
pub(crate) fn at(place: &Position, flag: &str) -> String {
    if place.file.as_os_str() == BUILT_IN {
        return format!("{flag}: ");
    }
    format!("{}:{}:{}: ", place.file.display(), place.line, place.column)
}

impl CorefileSource {
    /// Returns the file as the source, or the text of the built-in Corefile if there is no file.
    pub(crate) fn new(path: Option<PathBuf>, built_in: impl FnOnce() -> String) -> Self {
        path.map_or_else(|| Self::BuiltIn(built_in()), Self::File)
    }

    /// Returns the name of the source in log lines.
    pub(crate) fn log_name(&self) -> &'static str {
        match self {
            Self::File(_) => "Corefile",
            Self::BuiltIn(_) => "configuration from the flags",
        }
    }

    /// Reads the Corefile and its imports.
    pub(crate) fn read(&self) -> Result<LoadedCorefile, CorefileError> {
        match self {
            Self::BuiltIn(text) => LoadedCorefile::parse(BUILT_IN.into(), text),
            Self::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let place = Position { file: path.as_path().into(), line: 0, column: 0 };
                    place.error(format!("the Corefile can't be read: {error}"))
                })?;
                LoadedCorefile::parse(path.clone(), &text)
            }
        }
    }
}

impl LoadedCorefile {
    fn parse(path: PathBuf, text: &str) -> Result<Self, CorefileError> {
        let variables = Mutex::new(BTreeSet::new());
        let variable = |name: &str| {
            variables.lock().insert(name.to_owned());
            (FileSources::SYSTEM.variable)(name)
        };
        let blocks = parse(&path, text, &FileSources { variable: &variable, ..FileSources::SYSTEM })?;
        Ok(Self { path, blocks, variables: variables.into_inner() })
    }

    /// Returns the names of the environment variables that the Corefile uses.
    pub(crate) fn variables(&self) -> &BTreeSet<String> {
        &self.variables
    }

    /// Returns the text of the Corefile without comments, with variables expanded.
    pub(crate) fn text(&self) -> String {
        text_of(&self.blocks)
    }

    /// Returns whether a block has a plugin.
    pub(crate) fn has_plugin(&self, name: &str) -> bool {
        self.blocks.iter().flat_map(|block| &block.lines).any(|line| line.name() == name)
    }

    /// Returns the zones of links, none of which may have names of `cluster_domain`, and of the cluster's own names.
    pub(crate) fn zones(&self, cluster_domain: &Name) -> Result<CorefileZones, CorefileError> {
        let links = link_zones(&self.blocks, cluster_domain)?;
        Ok(CorefileZones { links, cluster: cluster_zones(&self.blocks) })
    }

    pub(crate) fn configure(&self, context: &ServerContext) -> Result<Configuration, CorefileError> {
        build_blocks(&self.path, &self.blocks, context)
    }

    /// Builds the configuration, and returns all errors that can be found at once.
    pub(crate) fn check(&self, context: &ServerContext) -> Result<Configuration, Vec<CorefileError>> {
        build_all(&self.path, &self.blocks, context)
    }
}
