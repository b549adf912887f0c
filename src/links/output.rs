//! The output of `lb-linker links` in each format.

use serde::Serialize;

use super::OutputFormat;
use super::detail::detail;
use super::table::{TableOptions, table};
use super::view::{LinkView, OverrideKind, OverrideView};
use crate::model::excerpt::printable;

/// The links in JSON and YAML.
#[derive(Serialize)]
struct LinkList<'a> {
    items: &'a [LinkView],
}

#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("the links can't be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the links can't be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Returns the text to print. Without a format, it is a table, or the details of the link if `is_detail` is set and
/// there is only one link. `now` is in seconds since 1970.
///
/// # Errors
/// If the links can't be represented in the format.
pub fn render(
    links: &[LinkView],
    format: Option<OutputFormat>,
    is_detail: bool,
    now: i64,
    options: TableOptions,
) -> Result<String, RenderError> {
    let lines = match (format, links) {
        (Some(OutputFormat::Json), _) => {
            return Ok(json(&LinkList { items: links })? + "\n");
        }
        (Some(OutputFormat::Yaml), _) => return Ok(serde_saphyr::to_string(&LinkList { items: links })?),
        (Some(OutputFormat::Name), _) => links.iter().map(name).collect(),
        (_, []) => Vec::new(),
        (None, [link]) if is_detail => detail(link, now),
        _ => table(links, now, options),
    };
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// Returns the resource and the name of the object that a link belongs to.
fn name(link: &LinkView) -> String {
    let resource = match &link.overridden_by {
        Some(OverrideView { kind: OverrideKind::StableName, .. }) => "stablename.linker.hsj.com",
        None => "service",
    };
    format!("{resource}/{}", printable(&link.service, &[]))
}

/// Returns a value as indented JSON. Also escapes the control characters from U+007F, which JSON allows in strings and
/// terminals obey.
///
/// # Errors
/// If the value can't be represented in JSON.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let is_escaped = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_escaped) {
        return Ok(text);
    }
    let escaped = |c: char| if is_escaped(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Ok(text.chars().map(escaped).collect())
}
