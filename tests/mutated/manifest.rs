//! Properties of the parser of manifests for arbitrary text, shared by the property test and the fuzz target.

use std::path::Path;

use lb_linker::sync::source::manifests::parse;

use crate::links::Links;

/// Maximum length of an error, in bytes.
const MAX_ERROR: usize = 8192;

/// Parses a file of manifests, and makes links of its objects. Returns the kind of outcome, or the violated property.
pub fn try_manifest(links: &Links, bytes: &[u8]) -> Result<&'static str, String> {
    let rule = |rule: String| format!("{rule}\n{}", String::from_utf8_lossy(bytes));
    let objects = match parse(Path::new("web.yaml"), bytes) {
        Ok(objects) => objects,
        Err(error) => return check(&error).map(|()| "wrong").map_err(rule),
    };
    objects.refused.iter().try_for_each(|error| check(error)).map_err(rule)?;
    links.replace(&objects.services, &objects.stable_names).map_err(rule)?;
    Ok(match (objects.services.is_empty(), objects.stable_names.is_empty()) {
        _ if !objects.refused.is_empty() => "wrong",
        (true, true) => "nothing",
        (false, true) => "services",
        (_, false) => "stable names",
    })
}

/// Checks that an error begins with file, line and column, and isn't long.
fn check(error: &str) -> Result<(), String> {
    let position = error.strip_prefix("web.yaml:").and_then(|rest| {
        let mut parts = rest.splitn(3, ':');
        let numbers = [parts.next()?.parse::<u64>().ok()?, parts.next()?.parse().ok()?];
        (numbers.iter().all(|number| *number > 0) && parts.next()?.len() > 5).then_some(())
    });
    match position {
        Some(()) if error.len() <= MAX_ERROR => Ok(()),
        _ => Err(format!("an error without a position or a message, or a long one: {error}")),
    }
}
