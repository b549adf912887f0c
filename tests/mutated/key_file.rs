//! Properties of files with keys for *tsig*, shared by the property test and the fuzz target.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lb_linker::dns::corefile::FileSources;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::configure;
use lb_linker::store::{OnGone, Store};

/// A secret of the seeds, which no error may show.
pub const SECRET: &str = "c2VjcmV0IG9mIHhmcg==";

/// A directory with a file of keys.
pub struct KeyFiles {
    context: ServerContext,
    directory: PathBuf,
}

impl KeyFiles {
    pub fn start() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("lb-linker-keys-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Self { context: ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap(), directory }
    }

    /// Reads a file. Returns the kind of outcome, or the violated property.
    pub fn try_file(&self, bytes: &[u8]) -> Result<&'static str, String> {
        let path = self.directory.join("keys");
        fs::write(&path, bytes).map_err(|error| error.to_string())?;
        let corefile = format!(".:0 {{\ntsig {{\nsecrets {}\n}}\nwhoami\n}}\n", path.display());
        let outcome = configure(Path::new("Corefile"), &corefile, &FileSources::SYSTEM, &self.context);
        let Err(error) = outcome else { return Ok("right") };
        let (error, start) = (error.to_string(), format!("{}:", path.display()));
        let is_short = error.len() < start.len() + 600 && !error.contains(['\n', '\0']);
        // The name of a key is shown, and may be any text.
        let is_secret = error.contains(SECRET) && !error.contains("already");
        if error.starts_with(&start) && is_short && !is_secret { Ok("wrong") } else { Err(error) }
    }
}

impl Drop for KeyFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
