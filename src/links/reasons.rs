//! What is wrong with a link or a name: the state is that of the most serious reason, and all reasons are told.

use std::borrow::Cow;

use super::view::ViewState;

/// Maximum number of reasons that are told.
const MAX_REASONS: usize = 8;
/// The size in bytes that no further reason may exceed. The first one is told at any size: its source bounds it.
const MAX_BYTES: usize = 8_000;

/// The source of a reason. The most serious one is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The Service or the StableName is gone.
    Gone,
    /// The Service isn't listed.
    LeftOut,
    /// The targets aren't allowed, and there is no earlier one.
    Refused,
    /// There is no target.
    Pending,
    /// No zone has a name of the link.
    NoZone,
    /// The targets lead in a circle.
    Circle,
    /// The addresses of the target can't be resolved.
    Unresolved,
    /// Another object has one of the names.
    LostName,
    /// The domain of a remote cluster contains one of the names.
    HiddenName,
    /// The external target is another object's or another instance's.
    ForeignExternalTarget,
    /// The last target stays, because there is no allowed one.
    Kept,
    /// The records of the target beside its addresses can't be resolved.
    OtherRecords,
    /// The external target is missing, points elsewhere or isn't known.
    ExternalTarget,
    /// The external target can't have the addresses.
    NoAddress,
    /// The StableName isn't checked.
    Unchecked,
    /// The StableName hasn't been read, and the last target stays.
    Provisional,
    /// StableNames can't be read.
    UnreadStableName,
    /// Services can't be read.
    UnreadService,
    /// The conditions of the StableName.
    StableName,
    /// The status of the StableName can't be written.
    UnwrittenStatus,
    /// A part of the Service, or of another object that asks for the name, is denied or ignored.
    Object,
    /// The removal of the external target is held back.
    HeldRemoval,
    /// When the external target is removed, or why it stays.
    Removal,
}

impl Cause {
    pub(super) fn state(self) -> ViewState {
        match self {
            Self::Gone => ViewState::Gone,
            Self::LeftOut => ViewState::LeftOut,
            Self::Refused => ViewState::Refused,
            Self::Pending => ViewState::Pending,
            Self::NoZone => ViewState::Unnamed,
            Self::Circle | Self::Unresolved => ViewState::Unresolved,
            Self::LostName | Self::HiddenName | Self::ForeignExternalTarget => ViewState::Conflict,
            Self::Kept => ViewState::Kept,
            Self::OtherRecords
            | Self::ExternalTarget
            | Self::NoAddress
            | Self::Unchecked
            | Self::Provisional
            | Self::UnreadStableName
            | Self::UnreadService
            | Self::StableName
            | Self::UnwrittenStatus
            | Self::Object
            | Self::HeldRemoval
            | Self::Removal => ViewState::Degraded,
        }
    }
}

/// The reasons why something isn't `Ready`.
#[derive(Debug, Default)]
pub(super) struct Reasons(Vec<(Cause, Cow<'static, str>)>);

impl Reasons {
    pub(super) fn add(&mut self, cause: Cause, text: impl Into<Cow<'static, str>>) {
        self.0.push((cause, text.into()));
    }

    pub(super) fn extend<T: Into<Cow<'static, str>>>(
        &mut self,
        cause: Cause,
        texts: impl IntoIterator<Item = T>,
    ) {
        self.0.extend(texts.into_iter().map(|text| (cause, text.into())));
    }

    pub(super) fn extend_pairs<T: Into<Cow<'static, str>>>(
        &mut self,
        pairs: impl IntoIterator<Item = (Cause, T)>,
    ) {
        self.0.extend(pairs.into_iter().map(|(cause, text)| (cause, text.into())));
    }

    /// Replaces the text of a cause, if there is one, by a more precise one.
    pub(super) fn replace(&mut self, cause: Cause, text: impl Into<Cow<'static, str>>) {
        if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| *known == cause) {
            *known = text.into();
        }
    }

    /// Returns the state of the most serious reason, and the text of all reasons, the most serious one first.
    pub(super) fn judged(mut self) -> (ViewState, Option<Cow<'static, str>>) {
        self.0.sort_by_key(|(cause, _)| *cause);
        let state = self.0.first().map_or(ViewState::Ready, |(cause, _)| cause.state());
        let number = self.0.len();
        let mut all = self.0.into_iter().map(|(_, text)| text).enumerate();
        let Some((_, mut told)) = all.next() else { return (state, None) };
        for (position, text) in all {
            if position == MAX_REASONS || told.len() + text.len() > MAX_BYTES {
                let more = number - position;
                return (state, Some(format!("{told} (and {more} more)").into()));
            }
            told = format!("{told}; {text}").into();
        }
        (state, Some(told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_bounded_in_number_and_size() {
        let told = |number: usize, size: usize| {
            let mut reasons = Reasons::default();
            reasons.extend(Cause::Object, (0..number).map(|_| "x".repeat(size)));
            reasons.judged().1.unwrap_or_default()
        };
        assert_eq!(told(0, 1), "");
        assert_eq!(told(2, 1), "x; x");
        assert_eq!(told(MAX_REASONS, 1), ["x"; MAX_REASONS].join("; "));
        assert!(told(MAX_REASONS + 2, 1).ends_with("; x (and 2 more)"));
        assert!(told(3, 4_000).ends_with("x (and 1 more)"), "{}", told(3, 4_000).len());
        assert!(told(3, MAX_BYTES).ends_with("x (and 2 more)"));
    }

    #[test]
    fn most_serious_reason_is_the_first() {
        let mut reasons = Reasons::default();
        reasons.add(Cause::Object, "an annotation");
        reasons.add(Cause::Kept, "a blank status");
        reasons.add(Cause::LostName, "a name");
        let expected = (ViewState::Conflict, Some("a name; a blank status; an annotation".into()));
        assert_eq!(reasons.judged(), expected);
    }
}
