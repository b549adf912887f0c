//! lb-linker held against the pinned CoreDNS: the same Corefile, the same questions, in the same order, to both.
//!
//! Every difference that stays is in [`expected`], with its reason; one that isn't there fails a test, and so does one
//! there that is no difference any more.
//!
//! With `COREFILE_SUBJECT=coredns` in the environment CoreDNS is held against itself. That shows what of a new case
//! varies by itself and has to be left out of it.

mod answer;
mod compare;
mod expected;
mod question;
mod server;
mod upstreams;

mod blocks;
mod cache;
mod chains;
mod forward;
mod gates;
mod hosts;
mod logs;
mod metrics;
mod reload;
mod rewrite;
mod storm;
mod stub_domains;
mod template;
