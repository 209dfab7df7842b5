//! Descriptors that others have sent, closed where nobody waits for it.
//!
//! To close a file may take as long as whoever serves it likes (FUSE, NFS, a socket that lingers). systemd closes such
//! descriptors in a thread of their own, too (`asynchronous_close`).

use corebeat_sync::quiet;
use rustix::fs::fcntl_get_seals;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// To the thread that closes; `None` where there can be none. No more can wait there than this process may have open
/// (`RLIMIT_NOFILE`): when they are used up nobody is taken in any more, but those who are there are served.
static CLOSER: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();

/// Closes descriptors, without waiting for it.
pub(crate) fn close(fds: impl IntoIterator<Item = OwnedFd>) {
    // Only memory has seals: that is what should come, and is closed at once. To ask for them asks nobody else.
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
    // A signal that asks the daemon to end is for the thread that serves.
    quiet::spawn("closer", move || to_close.into_iter().for_each(drop)).ok()?;
    Some(closer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn close_ends_what_was_sent() {
        let (mut near, far) = std::io::pipe().unwrap();
        close([far.into()]);
        assert_eq!(near.read(&mut [0]).unwrap(), 0, "waits until the other end is closed");
    }
}
