//! How much memory the C library keeps for itself. By default it has several heaps, each with gaps where lists from the
//! API server have been, and gives next to nothing back.
#![expect(unsafe_code, reason = "the C library's functions for that are called")]

use nix::libc;

/// Has all threads share one heap. To be called before there are threads; where little is allocated they don't wait for
/// each other.
pub fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes two numbers, and no pointers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives back to the system what isn't in use. It takes some milliseconds for a large heap: for when something large is
/// done with.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and no pointers.
    unsafe {
        libc::malloc_trim(0);
    }
}
