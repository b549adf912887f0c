//! How a zone is kept on disk, for a start without the primary servers.

use std::fs;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use hickory_proto::rr::Name;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::{Place, Secondaries, SecondaryZone, State};
use crate::dns::plugins::file::zone_map::Lack;
use crate::dns::plugins::secondary::saved::{Copy, NewCopy, SavedZone};
use crate::dns::plugins::secondary::schedule::Timers;
use crate::dns::plugins::secondary::source::Source;

impl Secondaries {
    /// Returns the place for the copy of a zone, and whether the copy there, if there is one, may be read: `accepts` tells
    /// that of its source. `known` are the other zones with the same origin.
    pub(super) fn saved(
        &self,
        origin: &Name,
        source: Source,
        known: &[Arc<SecondaryZone>],
        accepts: &dyn Fn(&Source) -> bool,
    ) -> Option<(SavedZone, bool)> {
        let directory = self.directory.as_deref()?;
        let usual = SavedZone::new(directory, origin, source);
        let own = SavedZone::beside(directory, origin, source);
        let others: Vec<SavedZone> = known.iter().filter_map(|zone| zone.place().saved).collect();
        let holder = |place: &SavedZone| others.iter().find(|other| other.path() == place.path());
        // Of a time before the zone had the usual place, to which it moves.
        if holder(&own).is_none()
            && holder(&usual).is_none()
            && own.is_outdated_by(&usual)
            && let Err(error) = fs::remove_file(own.path())
        {
            warn!("zone {origin}: its old copy in {} can't be removed: {error}", own.path().display());
        }
        // A copy that can't be read is reported later.
        let is_usable =
            |place: &SavedZone| Some(place.content().transpose()?.map_or(true, |(it, _)| accepts(&it)));
        let (place, is_usable) = match is_usable(&own) {
            Some(is_usable) => (own, is_usable),
            None if holder(&usual).is_none() && is_usable(&usual) != Some(false) => (usual, true),
            None => {
                // The block that has the usual place now will replace the copy there.
                if let Err(error) = own.share(&usual) {
                    let (from, to) = (usual.path().display(), own.path().display());
                    warn!("zone {origin}: its copy in {from} can't be linked to {to}: {error}");
                }
                (own, true)
            }
        };
        let place = holder(&place).map(|other| other.of_source(source)).unwrap_or(place);
        Some((place, is_usable))
    }
}

impl SecondaryZone {
    /// Keeps the copy where it is found for the block that keeps the zone up to date from now on.
    pub(super) async fn settle(
        self: &Arc<Self>,
        state: &mut State,
        secondaries: &Secondaries,
        source: Source,
    ) {
        if self.place.lock().source.has_same_listeners(&source) {
            return;
        }
        state.is_saved = false;
        let (zone, secondaries) = (Arc::clone(self), secondaries.clone());
        if let Err(error) = spawn_blocking(move || zone.move_to(&secondaries, source)).await {
            warn!("zone {}: its copy can't be moved: {error}", self.served.origin());
        }
    }

    /// Finds the place of the copy for a block with this source. Blocks.
    fn move_to(&self, secondaries: &Secondaries, source: Source) {
        let (origin, zones) = (self.served.origin(), secondaries.zones.lock());
        let all = zones.get(origin).into_iter().flatten().filter_map(Weak::upgrade);
        let others: Vec<Arc<Self>> = all.filter(|other| !std::ptr::eq(&**other, self)).collect();
        let is_own = |content: &Source| content.has_same_servers(&source);
        let saved = secondaries.saved(origin, source, &others, &is_own).map(|(saved, _)| saved);
        *self.place.lock() = Place { source, saved };
    }

    /// Serves the zone from its copy, if there is one.
    ///
    /// # Errors
    /// Returns what is wrong with the copy.
    pub(super) fn restore(&mut self, secondaries: &Secondaries) -> Result<(), String> {
        let Place { source, saved: Some(saved) } = self.place() else { return Ok(()) };
        let (origin, path) = (self.served.origin(), saved.path().display());
        let read = saved.read(origin, SystemTime::now(), secondaries.memory.clone());
        let read =
            read.map_err(|error| format!("{path}: {error}; the zone {origin} has to be transferred first"))?;
        let Some(Copy { zone, age, is_of_future, content }) = read else { return Ok(()) };
        let is_own = content.has_same_servers(&source);
        let left = Timers::of(&zone).expire.saturating_sub(age);
        let seconds = age.as_secs();
        if left.is_zero() {
            self.served.withdraw(Lack::Expired);
            return Err(format!("{path}: the zone {origin} has expired: it was confirmed {seconds} s ago"));
        }
        self.expiry.get_mut().confirm((secondaries.clock)(), left);
        let (serial, records) = (zone.serial(), zone.number_of_records());
        let others = if is_own { "" } else { ", by the primary servers before" };
        let text = format!(
            "zone {origin}: serial {serial}, {records} records from {path}, confirmed {seconds} s ago{others}"
        );
        self.served.serve(zone);
        let state = self.state.get_mut();
        (state.is_saved, state.is_of_future) = (is_own, is_own && is_of_future);
        state.restored = Some(text);
        *self.inherited.get_mut() = (!is_own).then_some(content);
        Ok(())
    }

    pub(super) async fn new_copy(&self, state: &mut State) -> Option<NewCopy> {
        let saved = self.place().saved?;
        let begun = saved.begin().await;
        begun.inspect_err(|error| self.unsaved(state, &saved, error)).ok()
    }

    /// Notes why the zone isn't kept on disk. It is tried again after REFRESH.
    fn unsaved(&self, state: &mut State, saved: &SavedZone, error: &dyn std::fmt::Display) {
        state.is_saved = false;
        let text = error.to_string();
        if state.unsaved.as_ref() == Some(&text) {
            return;
        }
        state.unsaved = Some(text);
        let (origin, path) = (self.served.origin(), saved.path().display());
        warn!(
            "zone {origin}: it can't be kept in {path}: {error}; a start without its primary servers lacks it"
        );
    }

    /// Notes in the copy that the zone was checked.
    pub(super) async fn confirm_copy(&self, state: &mut State) {
        let Some(saved) = self.place().saved.filter(|_| state.is_saved) else { return };
        let copy = saved.clone();
        match spawn_blocking(move || copy.confirm(SystemTime::now())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.unsaved(state, &saved, &error),
            Err(error) => self.unsaved(state, &saved, &error),
        }
    }

    /// Keeps a zone on disk that was just received.
    pub(super) async fn save(&self, state: &mut State, copy: Option<NewCopy>) {
        state.is_saved = false;
        let Some((copy, saved)) = copy.zip(self.place().saved) else { return };
        match spawn_blocking(move || copy.finish(SystemTime::now())).await {
            Ok(Ok(())) => (state.is_saved, state.unsaved) = (true, None),
            Ok(Err(error)) => self.unsaved(state, &saved, &error),
            Err(error) => self.unsaved(state, &saved, &error),
        }
    }
}
