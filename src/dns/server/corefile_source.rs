//! Where the Corefile comes from, and what it says now.

use std::path::PathBuf;

use crate::dns::corefile::{BlockSource, CorefileError, FileSources, Position, parse};
use crate::dns::plugins::lb_linker::{LinkZone, link_zones};
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::config::{Configuration, build_blocks, text_of};

/// What the built-in Corefile is called in errors.
const BUILT_IN: &str = "(built-in Corefile)";

/// Where the Corefile comes from.
#[derive(Clone, Debug)]
pub(crate) enum CorefileSource {
    /// A file, read again at each reload.
    File(PathBuf),
    /// The flags.
    BuiltIn(String),
}

/// A Corefile as it was read, with everything imported.
pub(crate) struct LoadedCorefile {
    path: PathBuf,
    blocks: Vec<BlockSource>,
}

/// Returns a place as the beginning of a sentence; empty for the built-in Corefile, whose lines the user doesn't see.
pub(crate) fn at(place: &Position) -> String {
    if place.file.as_os_str() == BUILT_IN {
        return String::new();
    }
    format!("{}:{}:{}: ", place.file.display(), place.line, place.column)
}

impl CorefileSource {
    /// Returns this file, or the text of the built-in Corefile where there is none.
    pub(crate) fn new(path: Option<PathBuf>, built_in: impl FnOnce() -> String) -> Self {
        path.map_or_else(|| Self::BuiltIn(built_in()), Self::File)
    }

    /// Reads it, and what it imports.
    pub(crate) fn read(&self) -> Result<LoadedCorefile, CorefileError> {
        match self {
            Self::BuiltIn(text) => LoadedCorefile::parse(BUILT_IN.into(), text),
            Self::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let place = Position { file: path.as_path().into(), line: 1, column: 1 };
                    place.error(format!("the Corefile can't be read: {error}"))
                })?;
                LoadedCorefile::parse(path.clone(), &text)
            }
        }
    }
}

impl LoadedCorefile {
    fn parse(path: PathBuf, text: &str) -> Result<Self, CorefileError> {
        let blocks = parse(&path, text, &FileSources::SYSTEM)?;
        Ok(Self { path, blocks })
    }

    /// Returns what it says, without comments and with all variables replaced.
    pub(crate) fn text(&self) -> String {
        text_of(&self.blocks)
    }

    /// Returns the zones with links' names.
    pub(crate) fn link_zones(&self) -> Result<Vec<LinkZone>, CorefileError> {
        link_zones(&self.blocks)
    }

    /// Builds everything it asks for.
    pub(crate) fn configure(&self, context: &ServerContext) -> Result<Configuration, CorefileError> {
        build_blocks(&self.path, &self.blocks, context)
    }
}
