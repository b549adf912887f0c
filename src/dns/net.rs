//! Sockets and network interfaces.

pub mod interfaces;
