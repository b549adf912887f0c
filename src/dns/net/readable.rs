//! A UDP socket of which the runtime reports arrivals only.
#![expect(unsafe_code, reason = "tokio has deprecated the safe functions that register a socket")]

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a socket with the runtime of this thread for reading: with write interest, each datagram that is sent would
/// wake the task.
///
/// # Errors
/// If the kernel refuses it.
pub(crate) fn for_reading(socket: Arc<UdpSocket>) -> io::Result<AsyncFd<Arc<UdpSocket>>> {
    // SAFETY: the socket always returns the same descriptor, and keeps it open.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}
