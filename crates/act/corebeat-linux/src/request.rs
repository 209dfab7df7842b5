//! Requests of the user about one process: a signal, a nice value. Corebeat does not undo them.

use crate::Error;
use crate::actuator::repair;
use crate::actuator::setting::Setting;
use crate::process::{SEARCHES_MAX, is_same, living, signal, thread_id, threads};
use corebeat_machine::ThreadId;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, setpriority_process};
use std::collections::HashSet;
use std::io;

/// Returns the identity of the process that has this number now. `None` if the process has ended,
/// or is hidden.
pub fn process_id(pid: i32) -> Option<ThreadId> {
    thread_id(pid).ok().flatten()
}

/// Sends a signal, by libc's number, to a process, and never to a later process with its number.
/// Returns whether the process existed.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown signal, [`Error::Denied`] for a process of another
/// user.
pub fn send_signal(process: ThreadId, number: i32) -> Result<bool, Error> {
    let known = Signal::from_named_raw(number)
        .ok_or_else(|| Error::InvalidArgument(format!("signal {number} is unknown")))?;
    signal(process, known)
        .map_err(|e| Error::of_call(format!("send a signal to process {}", process.tid), e))
}

/// Sets the nice value of each thread of a process, and of no later process with its number.
/// Returns the number of threads; 0 if the process has ended. The change is not journaled.
///
/// # Errors
/// [`Error::Denied`] for a process of another user, [`Error::Unsupported`] for a lower value
/// without `CAP_SYS_NICE`. Threads that were set before an error keep their new value.
pub fn renice_process(process: ThreadId, nice: i32) -> Result<usize, Error> {
    let refused = |e| refused(format!("process {}", process.tid), nice, e);
    let mut done = HashSet::new();
    for _ in 0..SEARCHES_MAX {
        let before = done.len();
        for tid in threads(process.tid) {
            // The kernel accepts nice values for zombies.
            let thread = living(tid).map_err(refused)?;
            let Some(thread) = thread.filter(|t| !done.contains(t)) else { continue };
            // A process that is the same now was the same when its thread was found.
            if is_same(process).map_err(refused)? && renice(thread, nice).map_err(refused)? {
                done.insert(thread);
            }
        }
        if done.len() == before {
            break;
        }
    }
    Ok(done.len())
}

/// Sets the nice value of one thread, and of no later thread with its number. Returns whether the
/// thread existed. The change is not journaled.
///
/// # Errors
/// As [`renice_process`].
pub fn renice_thread(thread: ThreadId, nice: i32) -> Result<bool, Error> {
    let refused = |e| refused(format!("thread {}", thread.tid), nice, e);
    if living(thread.tid).map_err(refused)? != Some(thread) {
        return Ok(false);
    }
    renice(thread, nice).map_err(refused)
}

/// Sets the nice value of a thread that was found alive. Returns whether the thread existed.
fn renice(thread: ThreadId, nice: i32) -> io::Result<bool> {
    if !is_same(thread)? {
        return Ok(false);
    }
    match setpriority_process(Pid::from_raw(thread.tid), nice) {
        Err(Errno::SRCH) => return Ok(false),
        other => other?,
    }
    let hit = is_same(thread)?;
    if !hit {
        repair(thread.tid, &Setting::Nice(nice));
    }
    Ok(hit)
}

fn refused(target: String, nice: i32, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES) => Error::Unsupported {
            what: format!("nice value {nice} for {target}"),
            how: "a value below the present one requires root, or a higher limit by 'ulimit -e'"
                .into(),
        },
        _ => Error::of_call(format!("set the nice value of {target}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_test_group::TestGroup;
    use rustix::process::{Pid, getpriority_process};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Child;

    fn sleeper(group: &TestGroup) -> (Child, ThreadId) {
        let child = group.sleeper();
        let id = process_id(child.id() as i32).unwrap();
        (child, id)
    }

    fn later(id: ThreadId) -> ThreadId {
        ThreadId { start_ticks: id.start_ticks + 1, ..id }
    }

    fn nice(tid: i32) -> i32 {
        getpriority_process(Pid::from_raw(tid)).unwrap()
    }

    #[test]
    fn signal_reaches_a_process_and_no_other_one_with_its_number() {
        let group = TestGroup::new();
        let (mut child, id) = sleeper(&group);
        assert!(!send_signal(later(id), libc::SIGKILL).unwrap());
        assert!(child.try_wait().unwrap().is_none());
        assert!(send_signal(id, libc::SIGTERM).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(!send_signal(id, libc::SIGTERM).unwrap(), "the process has ended");
        assert!(matches!(send_signal(id, 0), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn nice_value_is_set_for_all_threads_of_a_process_and_of_no_other_one() {
        let group = TestGroup::new();
        let (mut child, id) = sleeper(&group);
        let before = nice(id.tid);
        assert_eq!(renice_process(later(id), 19).unwrap(), 0);
        assert!(!renice_thread(later(id), 19).unwrap());
        assert_eq!(nice(id.tid), before);
        assert_eq!((renice_process(id, 18).unwrap(), nice(id.tid)), (1, 18));
        assert_eq!((renice_thread(id, 19).unwrap(), nice(id.tid)), (true, 19));
        assert!(send_signal(id, libc::SIGKILL).unwrap());
        // The process stays a zombie until the test waits for it.
        while living(id.tid).unwrap().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(renice_process(id, 19).unwrap(), 0);
        child.wait().unwrap();
        assert!(!renice_thread(id, 19).unwrap());
    }

    #[test]
    fn refused_nice_value_has_a_hint() {
        let text = |code| refused("process 7".into(), -5, io::Error::from_raw_os_error(code));
        assert!(text(libc::EACCES).to_string().contains("ulimit -e"));
        assert!(text(libc::EPERM).to_string().ends_with("run as the owner or as root"));
    }
}
