//! A thread that closes received descriptors.
//!
//! Closing a file may block for an unlimited time (FUSE, NFS, a lingering socket). systemd closes
//! such descriptors in a separate thread as well (`asynchronous_close`).

use corebeat_sync::quiet;
use rustix::fs::fcntl_get_seals;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Channel to the closing thread; `None` if the thread could not be started. The number of waiting
/// descriptors is bounded by `RLIMIT_NOFILE`: when the descriptors are exhausted, the daemon
/// accepts no further connections, and serves the present ones.
static CLOSER: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();

/// Closes descriptors without blocking.
pub(crate) fn close(fds: impl IntoIterator<Item = OwnedFd>) {
    // Only memory has seals. Memory is the expected kind of descriptor, and is closed at once. The
    // query itself cannot block.
    for fd in fds.into_iter().filter(|fd| fcntl_get_seals(fd).is_err()) {
        match CLOSER.get_or_init(start) {
            // The thread ends with the process.
            Some(closer) => drop(closer.send(fd)),
            None => drop(fd),
        }
    }
}

fn start() -> Option<Sender<OwnedFd>> {
    let (closer, to_close) = channel();
    // Signals that end the daemon are for the serving thread.
    quiet::spawn("closer", move || to_close.into_iter().for_each(drop)).ok()?;
    Some(closer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn close_closes_a_received_descriptor() {
        let (mut near, far) = std::io::pipe().unwrap();
        close([far.into()]);
        assert_eq!(near.read(&mut [0]).unwrap(), 0, "a read ends when the other end is closed");
    }
}
