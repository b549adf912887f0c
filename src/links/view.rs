//! What users see of a link.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LinkFilter;
use super::reasons::{Cause, Reasons};
use crate::model::excerpt::{examples, sentence};
use crate::model::link::{Link, LinkState};
use crate::model::names;
use crate::model::owner::object_of_target;
use crate::store::Store;
use crate::sync::events::link_problems::hidden_name;
use crate::sync::source::service_links::dns_names;

/// A link as it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkView {
    pub namespace: String,
    pub service: String,
    /// The DNS names that lead to the link: for each zone the short name (if the link has it) and the name that no other
    /// link can have, then the custom hostnames.
    pub dns_names: Vec<String>,
    /// The hostname, or the addresses with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// `<namespace>/<name>` of the external target; `None` if there is none, because the link has had no target yet, or
    /// because of `--sync off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_target: Option<String>,
    pub state: ViewState,
    /// Why the state isn't `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The StableName that the link belongs to; `None` if it belongs to the Service.
    #[serde(default, rename = "lead", skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<OverrideView>,
    /// When the Service or the StableName was created, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// The last changes that a running lb-linker has recorded, the oldest first; `None` if they aren't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<LinkEvent>>,
}

impl LinkView {
    /// Returns the namespace and the name of the Service.
    #[must_use]
    pub fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.service)
    }

    /// Returns the link as it is shown after its removal.
    #[must_use]
    pub fn removed(&self) -> Self {
        Self { state: ViewState::Removed, target: None, dns_names: Vec::new(), reason: None, ..self.clone() }
    }
}

/// The object that a link belongs to instead of the Service. Both have the same namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideView {
    pub kind: OverrideKind,
    pub namespace: String,
    pub name: String,
    /// The name of the source in use, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverrideKind {
    StableName,
}

impl fmt::Display for OverrideView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StableName {}/{}", self.namespace, self.name)?;
        match &self.source {
            Some(source) => write!(f, ", source {}", sentence(source)),
            None => Ok(()),
        }
    }
}

/// A change of a link: its target and state from this time on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEvent {
    pub time: Timestamp,
    pub state: ViewState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// In the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ViewState {
    /// DNS answers with the target that the status of the Service or of the StableName names.
    Ready,
    /// DNS answers with the target, but the external target is missing or points elsewhere, the StableName is
    /// Degraded or not Ready, or something that the Service asks for is denied or ignored.
    Degraded,
    /// The status names no allowed target any more; DNS answers with the last allowed target.
    Kept,
    /// Another object has one of the link's names, or the external target belongs to another object or instance.
    Conflict,
    /// The targets lead in a circle. Or the last look-up of the target's addresses has failed, or brought only denied
    /// ones: clients get SERVFAIL or NXDOMAIN, the last known addresses, or none. Only a process that answers DNS knows
    /// the latter.
    Unresolved,
    /// No zone serves a name of the link: DNS doesn't answer with its target.
    Unnamed,
    /// There is no target yet, or the StableName has withdrawn it.
    Pending,
    /// The status names only targets that aren't allowed, and there was no other target before; or the target policy
    /// denies the target of the StableName.
    Refused,
    /// The Service hasn't been listed since the start, because a flag leaves it out, because its namespace can't be
    /// listed, or because it doesn't exist. The external target is kept, perhaps only for `--delete-delay`.
    LeftOut,
    /// The Service or the StableName is gone; `--on-delete` decides what happens to its external target.
    Gone,
    /// The link is removed. Only in the output of `--watch`.
    Removed,
}

impl fmt::Display for ViewState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ready => "Ready",
            Self::Degraded => "Degraded",
            Self::Unresolved => "Unresolved",
            Self::Unnamed => "Unnamed",
            Self::Conflict => "Conflict",
            Self::Pending => "Pending",
            Self::Refused => "Refused",
            Self::Kept => "Kept",
            Self::LeftOut => "LeftOut",
            Self::Gone => "Gone",
            Self::Removed => "Removed",
        })
    }
}

/// Returns the links that a filter selects, ordered by namespace and name, as the store alone shows them.
#[must_use]
pub fn views(store: &Store, target_namespace: &str, filter: &LinkFilter) -> Vec<LinkView> {
    selected(store, filter).iter().map(|link| view(link, store, target_namespace)).collect()
}

pub(super) fn selected(store: &Store, filter: &LinkFilter) -> Vec<Arc<Link>> {
    let mut links = store.links();
    // Names of Services have no dots.
    let named = filter.service.as_deref().filter(|name| name.contains('.'));
    match named.and_then(|name| owner_of(store, name)) {
        Some(owner) => links.retain(|link| link.key == owner.key && filter.is_within(&link.key)),
        None => links.retain(|link| filter.selects(&link.key)),
    }
    links.sort_by(|a, b| a.key.cmp(&b.key));
    links
}

/// Returns the links that differ between two lists: first the removed links, then new and changed links. No list may
/// contain a key twice.
#[must_use]
pub fn changes(before: &[LinkView], after: &[LinkView]) -> Vec<LinkView> {
    fn by_key(links: &[LinkView]) -> HashMap<(&str, &str), &LinkView> {
        links.iter().map(|link| (link.key(), link)).collect()
    }
    let (former, current) = (by_key(before), by_key(after));
    let removed = before.iter().filter(|link| !current.contains_key(&link.key())).map(LinkView::removed);
    let changed = after.iter().filter(|link| former.get(&link.key()) != Some(link)).cloned();
    removed.chain(changed).collect()
}

pub(super) fn view(link: &Arc<Link>, store: &Store, target_namespace: &str) -> LinkView {
    let (state, reason) = reasons_of(link, store).judged();
    LinkView {
        namespace: link.key.namespace().to_owned(),
        service: link.key.name().to_owned(),
        dns_names: dns_names(store, link),
        target: link.target.as_ref().map(ToString::to_string),
        external_target: (link.target.is_some()
            || link.state != LinkState::Live
            || store.has_external_target(&link.key))
        .then(|| format!("{target_namespace}/{}", link.external_target())),
        state,
        reason,
        overridden_by: override_of(link),
        created: link.object_created.and_then(|created| Timestamp::from_second(created).ok()),
        history: None,
    }
}

/// Returns the reasons that the store alone shows.
pub(super) fn reasons_of(link: &Arc<Link>, store: &Store) -> Reasons {
    let mut reasons = Reasons::default();
    if let Some((cause, why)) = of_target(link) {
        reasons.add(cause, why);
    }
    if link.is_missing_name() {
        let taken = taken_names(link, store).map(Cow::Owned);
        reasons.add(Cause::LostName, taken.unwrap_or(Cow::Borrowed("another link has one of its names")));
    }
    reasons.extend(Cause::HiddenName, hidden_name(link, store));
    reasons
}

/// Returns which names of a link another link has, and which one, or how the link gets a name that is free by now.
fn taken_names(link: &Link, store: &Store) -> Option<String> {
    let (namespace, service) = link.key.parts();
    let label = names::dashed_label(namespace, service);
    let zones = store.zones();
    let zones = zones.iter().filter(|zone| zone.has_default_names());
    let short: Vec<String> = zones.map(|zone| format!("{label}.{}", names::text(&zone.origin))).collect();
    let free_short: Vec<&String> = short.iter().filter(|name| owner_of(store, name).is_none()).collect();
    let custom = link.annotations.hostnames.iter().filter(|name| !link.hostnames.contains(name));
    let asked = short.iter().cloned().chain(custom.map(ToString::to_string));
    let taken = asked.filter_map(|name| {
        let holder = owner_of(store, &name).filter(|holder| holder.key != link.key)?;
        Some(match holder.key.may_be_service() {
            true => format!("{name} belongs to link {}", holder.key),
            false => format!("{name} belongs to {}", object_of_target(&holder.key)),
        })
    });
    let default = link.key.external_target();
    let is_free = link.lacks_its_external_target() && store.claimants(&default).is_empty();
    let free = is_free.then(|| {
        let own = format!("{service}.{namespace}.");
        let own = dns_names(store, link).into_iter().find(|name| name.starts_with(&own));
        let first = own.map(|name| format!("; point Pods at {name} first")).unwrap_or_default();
        let also = match free_short.is_empty() {
            true => String::new(),
            false => format!(", and the name {},", examples(free_short)),
        };
        format!(
            "{default} is free: the link gets it{also} once its external target {} is deleted{first}",
            link.external_target()
        )
    });
    Some(examples(taken.chain(free))).filter(|taken| !taken.is_empty())
}

fn owner_of(store: &Store, name: &str) -> Option<Arc<Link>> {
    store.link_of_host(&Name::from_ascii(name).ok()?)
}

/// Returns the StableName that a link belongs to: once the StableName has announced a target, or if no Service
/// has the link's name. `None` if the link belongs to a Service.
pub(super) fn override_of(link: &Arc<Link>) -> Option<OverrideView> {
    let (namespace, name) = link.key.parts();
    let source = link.active_override().map(|by| by.source.to_string()).filter(|source| !source.is_empty());
    (link.active_override().is_some() || link.service_link().is_none()).then(|| OverrideView {
        kind: OverrideKind::StableName,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source,
    })
}

/// Returns the state of a link, as far as the link alone shows it.
pub(super) fn state_of(link: &Link) -> ViewState {
    let lost = link.is_missing_name().then_some(Cause::LostName);
    let causes = of_target(link).map(|(cause, _)| cause).into_iter().chain(lost);
    causes.min().map_or(ViewState::Ready, Cause::state)
}

/// Returns why a link doesn't have the target that its Service or StableName names at present.
fn of_target(link: &Link) -> Option<(Cause, &'static str)> {
    const LEFT_OUT: &str = "a flag leaves the Service out, lb-linker may not list its namespace, or whether it exists \
                            isn't known yet; its external target is kept, perhaps only for --delete-delay";
    const REFUSED: &str = "the target that the Service names isn't allowed";
    let by = link.active_override();
    let has_no_source = || {
        let overridden = link.overridden.as_ref();
        overridden.is_some_and(|overridden| overridden.service_link.is_none())
    };
    Some(match link.state {
        // A link has no uid if it was that of a StableName alone, or of a Service that was gone before the start.
        LinkState::Gone(_) if link.uid.is_empty() => (Cause::Gone, "the Service or the StableName is gone"),
        LinkState::Gone(_) => {
            (Cause::Gone, "the Service is gone, isn't a load balancer any more, or isn't selected any more")
        }
        LinkState::LeftOut => (Cause::LeftOut, LEFT_OUT),
        LinkState::Stale if link.refused => (Cause::Kept, REFUSED),
        LinkState::Stale => (Cause::Kept, "the Service's status is blank"),
        LinkState::Recreated(_) if by.is_some_and(|by| by.refused) => {
            (Cause::Refused, "the target of the StableName isn't allowed")
        }
        LinkState::Recreated(_) if by.is_some() => {
            (Cause::Pending, "the target of the StableName is withdrawn")
        }
        LinkState::Recreated(_) => {
            (Cause::Pending, "the Service was recreated, or its type was changed, and it has no target yet")
        }
        LinkState::Live if link.target.is_some() => return None,
        LinkState::Live if by.is_some_and(|by| by.is_provisional) => {
            (Cause::Pending, "its StableName hasn't been read, and its external target has no target")
        }
        LinkState::Live if has_no_source() => (Cause::Pending, "the StableName announces no target yet"),
        LinkState::Live if link.refused => (Cause::Refused, REFUSED),
        LinkState::Live => (Cause::Pending, "the Service's status names no target yet"),
    })
}

#[cfg(test)]
mod tests;
