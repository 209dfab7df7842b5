//! Time of the calling thread: its slice, and its wait for CPUs.

use crate::actuator::setting::{self, Kind, SLICE_NS_MIN, Setting};
use crate::file::read_text;
use crate::thread::parse_schedstat;
use std::marker::PhantomData;

/// The shortest slice for the calling thread, until this value is dropped. The scheduler runs a
/// thread with a short slice sooner after a wake-up; the thread gets no more CPU time.
///
/// Threads and processes that the thread starts meanwhile inherit the slice.
#[derive(Debug)]
pub struct ShortSlice {
    before: Setting,
    /// Not `Send`: the slice belongs to the creating thread.
    not_send: PhantomData<*const ()>,
}

impl ShortSlice {
    /// Requests the slice. `None` before Linux 6.12, and for a real-time thread.
    pub fn request() -> Option<ShortSlice> {
        if setting::default_slice_ns() == 0 {
            return None;
        }
        let before = setting::read(0, Kind::Slice).ok()??;
        setting::write(0, &Setting::SliceNs(SLICE_NS_MIN)).ok()?;
        Some(ShortSlice { before, not_send: PhantomData })
    }
}

impl Drop for ShortSlice {
    fn drop(&mut self) {
        // The thread may have become a real-time thread, which has no slice.
        let _ = setting::write(0, &self.before);
    }
}

/// Returns for how long the calling thread has waited for CPUs so far, in seconds. `None` on a
/// kernel without schedstat.
pub fn waited_s() -> Option<f64> {
    let text = read_text("/proc/thread-self/schedstat").ok()?;
    parse_schedstat(&text).map(|sched| sched.delay_ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slice_ends_when_dropped() {
        let _alone = crate::actuator::tests::alone();
        std::thread::spawn(|| {
            let slice = || setting::read(0, Kind::Slice).unwrap().unwrap();
            let before = slice();
            if let Some(short) = ShortSlice::request() {
                assert_eq!(slice(), Setting::SliceNs(SLICE_NS_MIN));
                drop(short);
            }
            assert_eq!(slice(), before);
        })
        .join()
        .unwrap();
    }
}
