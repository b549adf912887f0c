//! Names from objects other than load balancers: what the sources of names have in common.
//!
//! `object` says which names an object asks for and what is behind them, `shared` what the objects of a namespace ask
//! for together, and `bound` how much of that counts: all are pure. `state` has what is known of a source, and gives its
//! names to the store. `source` is what each source adds: its kinds of objects. `watch` reads them from the API server.

pub mod bound;
pub mod object;
pub mod shared;
pub mod source;
pub mod state;
pub mod watch;
