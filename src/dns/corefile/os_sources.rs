//! Environment variables and files of the operating system.

use std::path::{Path, PathBuf};

use super::FileSources;

impl FileSources<'static> {
    /// The environment of this process, and the file system.
    pub const SYSTEM: Self = Self {
        variable: &|name| std::env::var(name).ok(),
        read: &|path| std::fs::read_to_string(path),
        glob: &|pattern| glob(pattern),
    };
}

/// Returns the files that match a pattern, in order. As in Go, and unlike in a shell, `*` and `?` also match a leading
/// dot, and unreadable directories are ignored. Directories are skipped, because the volume of a ConfigMap contains
/// hidden directories.
fn glob(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        found = match part.as_os_str().to_str() {
            Some(part) if part.contains(['*', '?']) => {
                found.iter().flat_map(|directory| entries(directory, part)).collect()
            }
            _ => found.into_iter().map(|directory| directory.join(part)).collect(),
        };
    }
    found.retain(|path| path.symlink_metadata().is_ok() && !path.is_dir());
    found.sort();
    found
}

/// Returns the entries of a directory that match one component of a pattern.
fn entries(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = std::fs::read_dir(here).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter(|name| name.to_str().is_some_and(|name| matches_pattern(pattern, name)))
        .map(|name| directory.join(name))
        .collect()
}

/// Returns whether a name matches a pattern. The recursion is cheap, because a pattern has at most one `*`.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => name.is_empty(),
        Some('*') => {
            let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.any(|at| matches_pattern(rest.as_str(), &name[at..]))
        }
        Some(wanted) => {
            let mut name = name.chars();
            let first = name.next();
            first.is_some_and(|c| wanted == '?' || c == wanted)
                && matches_pattern(rest.as_str(), name.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_yields_the_matching_files_in_order() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["dir.conf", "other.conf"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        for name in ["b.conf", "a.conf", "c.txt", ".d.conf", "conf", "dir.conf/a.conf"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let found = glob(&directory.path().join(pattern));
            let names = found.iter().map(|path| path.strip_prefix(directory.path()).unwrap());
            names.map(|name| name.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("*.conf"), [".d.conf", "a.conf", "b.conf"]);
        assert_eq!(names("?.conf"), ["a.conf", "b.conf"]);
        assert_eq!(names("?.c*f"), ["a.conf", "b.conf"]);
        assert_eq!(names("c*"), ["c.txt", "conf"]);
        assert_eq!(names("*/a.conf"), ["dir.conf/a.conf"]);
        assert_eq!(names("?"), [""; 0]);
        assert_eq!(names("none/*"), [""; 0]);
    }
}
