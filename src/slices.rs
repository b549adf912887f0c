//! How soon a thread gets a processor that others want, too.
#![expect(unsafe_code, reason = "the kernel is asked in a way that no crate has")]

/// Asks for short turns, for this thread and those that it starts: who wakes up for something short has its turn sooner
/// then, as others' longer turns can wait. An answer, or an event of the API server, takes microseconds; by default a
/// turn is some milliseconds. Linux has this since 6.12 and asks for no right; where it hasn't, nothing changes.
pub fn shorten() {
    #[cfg(target_os = "linux")]
    linux::shorten();
}

#[cfg(target_os = "linux")]
mod linux {
    use nix::libc::{SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, syscall};

    /// The shortest turn that the kernel grants, in nanoseconds.
    const TURN: u64 = 100_000;

    /// `struct sched_attr` as its first version has it: sched_setattr(2).
    #[repr(C)]
    #[derive(Debug, Default)]
    pub(super) struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        pub(super) runtime: u64,
        deadline: u64,
        period: u64,
    }

    const SIZE: u32 = size_of::<Attributes>() as u32;

    /// Returns how this thread is scheduled.
    pub(super) fn attributes() -> Option<Attributes> {
        let mut attributes = Attributes::default();
        // SAFETY: the kernel writes as many bytes as it is told there are.
        let failed = unsafe { syscall(SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
        (failed == 0).then_some(attributes)
    }

    pub(super) fn shorten() {
        let Some(mut attributes) = attributes() else { return };
        // Who has chosen another way to schedule us, by chrt or the like, is left alone.
        if i32::try_from(attributes.policy) == Ok(SCHED_OTHER) {
            (attributes.size, attributes.runtime) = (SIZE, TURN);
            // SAFETY: the kernel reads as many bytes as `size` says.
            unsafe { syscall(SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_are_started_later_have_short_turns_as_well_and_nothing_else_changes() {
        let both = thread::spawn(|| {
            let before = linux::attributes().unwrap();
            shorten();
            let later = thread::spawn(|| linux::attributes().unwrap()).join().unwrap();
            (before, later)
        });
        let (before, mut later) = both.join().unwrap();
        // An older kernel says nothing of it.
        if later.runtime != before.runtime {
            assert_eq!(later.runtime, 100_000);
        }
        later.runtime = before.runtime;
        assert_eq!(format!("{before:?}"), format!("{later:?}"));
    }
}
