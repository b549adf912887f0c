//! The program, whose command line is [`lb_linker::commands`].

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// jemalloc, because the C library's allocator mixes small short-lived allocations with long-lived ones, and can't
/// return the gaps to the system.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// jemalloc's settings: one arena, because little is allocated on hot paths; pages that are unused for 1 s return to
/// the system. The environment variable `_RJEM_MALLOC_CONF` overrides these settings.
#[expect(unsafe_code, reason = "jemalloc looks for its settings by this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 95] =
    b"narenas:1,background_thread:true,max_background_threads:1,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

fn main() -> ExitCode {
    lb_linker::commands::main()
}
