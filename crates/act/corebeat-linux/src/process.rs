//! Processes and threads by names that are never used twice.

use corebeat_machine::ThreadId;
use std::fs;

/// The state letter and start time of a thread, from the text of `/proc/PID/task/TID/stat` (or `/proc/PID/stat`).
///
/// The name in parentheses may hold anything, a parenthesis included, so fields are counted from the last one.
pub(crate) fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 is the start time; field 3, the state, is the first after the name.
    let start = fields.nth(22 - 4)?.parse().ok()?;
    Some((state, start))
}

/// The identity of a thread that is there now.
pub(crate) fn thread_id(tid: i32) -> Option<ThreadId> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    state_and_start(&stat).map(|(_, start_ticks)| ThreadId { tid, start_ticks })
}

/// Whether the thread is there and still the one that was meant: numbers are used again.
pub(crate) fn is_same(thread: ThreadId) -> bool {
    thread_id(thread.tid) == Some(thread)
}

/// All threads of a process, in no order. Empty if the process has ended.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let numbers =
        |dir: fs::ReadDir| dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    fs::read_dir(format!("/proc/{pid}/task")).map(numbers).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_start_name_with_parentheses_is_skipped() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1 1";
        assert_eq!(state_and_start(stat), Some(('S', 4242)));
        assert_eq!(state_and_start("7 (cut"), None);
        assert_eq!(state_and_start("7 (cut) S 1"), None);
    }

    #[test]
    fn thread_id_of_this_thread_stays_the_same() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(is_same(thread_id(tid).unwrap()));
        assert!(threads(std::process::id() as i32).contains(&tid));
    }

    #[test]
    fn is_same_for_another_start_is_false() {
        let mut id = thread_id(std::process::id() as i32).unwrap();
        id.start_ticks += 1;
        assert!(!is_same(id));
    }
}
