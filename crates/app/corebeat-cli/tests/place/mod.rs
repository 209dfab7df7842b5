//! Waiting for a daemon of a test's own.

use corebeat_wire::Connection;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Asks until the answer is right: what happens in another process's time is waited for.
pub(crate) fn until(mut right: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if right() {
            return;
        }
        thread::sleep(Duration::from_millis(3));
    }
    panic!("it does not come to pass");
}

/// Whether a daemon listens here.
pub(crate) fn listens(socket: &Path) -> bool {
    Connection::to(socket).is_ok_and(|found| found.is_some())
}
