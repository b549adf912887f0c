//! Names from objects other than load balancers: what the sources of names have in common.
//!
//! `object` says what one object asks for, and `shared` what the objects of a namespace ask for together: both are pure.
//! `state` has the objects of a source, and gives their names to the store. `watch` reads them from the API server.

pub mod object;
pub mod shared;
pub mod state;
pub mod watch;
