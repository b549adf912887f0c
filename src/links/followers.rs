//! The Services that follow by `linker.hsj.com/source`, as users see them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::OutputFormat;
use super::output::{RenderError, json};
use super::table::{TableOptions, columns};
use crate::model::excerpt::{paragraph, printable, sentence};
use crate::model::service_key::ServiceKey;
use crate::sync::source_annotation::followers::{Follower, FollowerState};

/// A Service with the annotation, as it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowerView {
    pub namespace: String,
    pub service: String,
    /// `<namespace>/<name>` of the link that the annotation names; `None` if the annotation is malformed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `spec.externalName`; `None` if it isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub state: FollowerViewState,
    /// Why the state isn't `Ready`, or that no lb-linker has written the Service yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FollowerViewState {
    /// The Service points at the target of its link.
    Ready,
    /// The Service points at another name, which hasn't been replaced yet, or one of its annotations is ignored.
    Degraded,
    /// The link has no target at present: the Service stays as it is.
    Kept,
    /// The Service may not follow, or names no link: it stays as it is.
    Refused,
}

impl fmt::Display for FollowerViewState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Serialize)]
struct FollowerList<'a> {
    items: &'a [FollowerView],
}

/// Returns what users see of a Service that follows; `of_source` is what is wrong with the StableName that it follows.
/// `is_led`: whether this process leads, and so lets the Service follow.
pub(super) fn follower_view(
    key: &ServiceKey,
    follower: Follower,
    of_source: Option<&str>,
    is_led: bool,
) -> FollowerView {
    let of_source = of_source.map(|why| format!("; its StableName: {why}")).unwrap_or_default();
    let ignored = follower.ignored;
    let (state, reason) = match follower.state {
        FollowerState::Follows if ignored.is_some() => (FollowerViewState::Degraded, None),
        FollowerState::Follows => {
            let why = "its name is right, and no lb-linker has written it yet";
            (FollowerViewState::Ready, (!is_led && !follower.is_written).then(|| why.to_owned()))
        }
        FollowerState::Outdated { name, failure } => {
            let failure = failure.map(|why| format!(": {why}")).unwrap_or_default();
            let why = format!("it has to point at {name}, which isn't written yet{failure}");
            (FollowerViewState::Degraded, Some(why))
        }
        FollowerState::Kept(why) => (FollowerViewState::Kept, Some(why + &of_source)),
        FollowerState::Refused(why) => (FollowerViewState::Refused, Some(why)),
    };
    let reasons: Vec<String> = [reason, ignored].into_iter().flatten().collect();
    let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    let (namespace, service) = key.parts();
    FollowerView {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        source: follower.source.map(|source| source.to_string()),
        target: Some(follower.name).filter(|name| !name.is_empty()),
        state,
        reason: reason.map(|why| paragraph(&why).to_string()),
    }
}

/// Returns the text to print. Without a format, it is a table.
///
/// # Errors
/// If the Services can't be represented in the format.
pub fn render(
    followers: &[FollowerView],
    format: Option<OutputFormat>,
    options: TableOptions,
) -> Result<String, RenderError> {
    let lines = match format {
        Some(OutputFormat::Json) => return Ok(json(&FollowerList { items: followers })? + "\n"),
        Some(OutputFormat::Yaml) => return Ok(serde_saphyr::to_string(&FollowerList { items: followers })?),
        Some(OutputFormat::Name) => followers
            .iter()
            .map(|follower| format!("service/{}", printable(&follower.service, &[])))
            .collect(),
        None | Some(OutputFormat::Wide) if followers.is_empty() => Vec::new(),
        None | Some(OutputFormat::Wide) => table(followers, options),
    };
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn table(followers: &[FollowerView], options: TableOptions) -> Vec<String> {
    let mut header = vec!["NAMESPACE", "SERVICE", "FOLLOWS", "TARGET", "STATE", "REASON"];
    let cells = |follower: &FollowerView| {
        let FollowerView { namespace, service, source, target, state, reason } = follower;
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "<none>".to_owned());
        let reason = match reason {
            Some(reason) if !options.wide => sentence(reason).to_string(),
            reason => text(reason),
        };
        [namespace.clone(), service.clone(), text(source), text(target), state.to_string(), reason]
            .map(|cell| printable(&cell, &[]))
    };
    // Control characters are escaped: the list may come from another program that listens at `--admin-listen`.
    let rows: Vec<[String; 6]> = followers.iter().map(cells).collect();
    let mut all: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
    if !options.with_namespace {
        header.remove(0);
        all.iter_mut().for_each(|row| {
            row.remove(0);
        });
    }
    all.insert(0, header);
    columns(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: FollowerState) -> FollowerView {
        view_of(state, true, true)
    }

    fn view_of(state: FollowerState, is_written: bool, is_led: bool) -> FollowerView {
        let (source, name) = (Some(ServiceKey::new("shop", "web")), "a.example".to_owned());
        let follower = Follower { source, name, is_written, state, ignored: None };
        follower_view(&ServiceKey::new("app", "db"), follower, None, is_led)
    }

    #[test]
    fn ignored_annotation_of_a_follower_is_a_reason() {
        let refused = FollowerState::Refused("it may not follow".to_owned());
        for (state, expected) in [
            (FollowerState::Follows, (FollowerViewState::Degraded, "an annotation is ignored")),
            (refused, (FollowerViewState::Refused, "it may not follow; an annotation is ignored")),
        ] {
            let (source, name) = (Some(ServiceKey::new("shop", "web")), "a.example".to_owned());
            let ignored = Some("an annotation is ignored".to_owned());
            let follower = Follower { source, name, is_written: true, state, ignored };
            let view = follower_view(&ServiceKey::new("app", "db"), follower, None, true);
            assert_eq!((view.state, view.reason.as_deref()), (expected.0, Some(expected.1)));
        }
    }

    #[test]
    fn follower_that_no_lb_linker_has_written_says_so() {
        for (is_written, is_led) in [(true, true), (true, false), (false, true), (false, false)] {
            let view = view_of(FollowerState::Follows, is_written, is_led);
            let is_told = view.reason.is_some_and(|why| why.contains("no lb-linker has written it yet"));
            assert_eq!((view.state, is_told), (FollowerViewState::Ready, !is_written && !is_led));
        }
    }

    #[test]
    fn followers_are_printed_with_source_state_and_reason() {
        let followers = [
            view(FollowerState::Follows),
            view(FollowerState::Outdated { name: "b.example".to_owned(), failure: None }),
            view(FollowerState::Outdated { name: "c.example".to_owned(), failure: Some("no".to_owned()) }),
            view(FollowerState::Refused("it may not".to_owned())),
        ];
        let options = TableOptions { with_namespace: true, ..TableOptions::default() };
        let expected = "\
NAMESPACE   SERVICE   FOLLOWS    TARGET      STATE      REASON
app         db        shop/web   a.example   Ready      <none>
app         db        shop/web   a.example   Degraded   it has to point at b.example, which isn't written yet
app         db        shop/web   a.example   Degraded   it has to point at c.example, which isn't written yet: no
app         db        shop/web   a.example   Refused    it may not
";
        assert_eq!(render(&followers, None, options).unwrap(), expected);
        assert_eq!(render(&[], None, options).unwrap(), "");
        let long = [view(FollowerState::Refused("x".repeat(2000)))];
        let [plain, wide] = [false, true].map(|wide| table(&long, TableOptions { wide, ..options }).concat());
        assert!(plain.ends_with("xx…") && wide.ends_with("xx") && plain.len() + 1000 < wide.len(), "{plain}");
        let names = render(&followers[..1], Some(OutputFormat::Name), options).unwrap();
        assert_eq!(names, "service/db\n");
        let json = render(&followers[..1], Some(OutputFormat::Json), options).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["items"][0]["source"], "shop/web");
    }

    #[test]
    fn followers_of_a_foreign_program_cant_control_the_terminal() {
        let hostile = FollowerView {
            service: "\u{1b}[2J\r\n".to_owned(),
            reason: Some("\u{9b}2J".to_owned()),
            ..view(FollowerState::Follows)
        };
        for format in [None, Some(OutputFormat::Json), Some(OutputFormat::Yaml), Some(OutputFormat::Name)] {
            let text = render(std::slice::from_ref(&hostile), format, TableOptions::default()).unwrap();
            let found = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(found, None, "{format:?}: {text:?}");
        }
    }
}
