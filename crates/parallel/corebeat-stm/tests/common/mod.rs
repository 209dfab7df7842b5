//! Set-up of the tests of retired values.

use corebeat_stm::atomically;
use std::sync::{Mutex, mpsc};
use std::thread;

/// Runs a test beside a second thread, which makes the grace periods of many values end together: a
/// thread that is alone frees values soon.
pub(crate) fn beside_another(test: impl FnOnce()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap();
    let (begins, begun) = mpsc::channel();
    let (ends, ended) = mpsc::channel::<()>();
    thread::scope(move |scope| {
        scope.spawn(move || {
            atomically(|_| Ok(()));
            begins.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        begun.recv().unwrap();
        test();
        drop(ends);
    });
}
