//! Variables and files of the system.

use std::io;
use std::path::{Path, PathBuf};

use super::Sources;

impl Sources<'static> {
    /// The environment of this process, and the files that it can read.
    pub const SYSTEM: Self = Self {
        variable: &|name| std::env::var(name).ok(),
        read: &|path| std::fs::read_to_string(path),
        glob: &|pattern| glob(pattern).unwrap_or_default(),
    };
}

/// Returns the files that a pattern with one wildcard in its last part stands for, in order.
fn glob(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) =
        (pattern.parent(), pattern.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(Vec::new());
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let (before, after) = name.split_once(['*', '?']).unwrap_or((name, ""));
    let one = name.contains('?');
    let fits = |found: &str| {
        let fits = found.len() >= before.len() + after.len()
            && found.starts_with(before)
            && found.ends_with(after)
            // As in a shell and in Go: hidden files aren't meant.
            && (before.starts_with('.') || !found.starts_with('.'));
        fits && (!one || found.len() == before.len() + after.len() + 1)
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(fits) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_the_files_that_it_fits_in_order() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", "c.txt", ".hidden.conf", "conf"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("dir.conf")).unwrap();
        let names = |pattern: &str| -> Vec<String> {
            let found = glob(&directory.path().join(pattern)).unwrap();
            found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("*.conf"), ["a.conf", "b.conf"]);
        assert_eq!(names("?.conf"), ["a.conf", "b.conf"]);
        assert_eq!(names("c*"), ["c.txt", "conf"]);
        assert_eq!(names("?"), [""; 0]);
    }
}
