//! Changes that the user requests for a process: a signal, or a nice value.

use corebeat_command::{Failure, printable};
use corebeat_linux::{renice_process, renice_thread, send_signal};
use corebeat_machine::ThreadId;
use signal_hook::low_level::signal_name;
use std::fmt;

/// Permitted nice values.
const NICE: std::ops::RangeInclusive<i32> = -20..=19;

/// Greatest number of a signal with a name.
const SIGNAL_MAX: i32 = 31;

/// A process or a thread, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) id: ThreadId,
    pub(crate) is_thread: bool,
    pub(crate) name: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_thread { "thread" } else { "process" };
        write!(f, "{kind} {} ({})", self.id.tid, printable(&self.name))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Send a signal, by its number, to a process.
    Signal(Target, i32),
    /// Set the nice value of a thread, or of all threads of a process.
    Nice(Target, i32),
}

impl Change {
    /// Makes the change. Returns one line about its success or failure.
    pub(crate) fn carry_out(&self) -> String {
        let (target, done) = match self {
            Change::Signal(target, signal) => {
                let sent = send_signal(target.id, *signal);
                (target, sent.map(|sent| sent.then(|| format!("sent {}", name(*signal)))))
            }
            Change::Nice(target, nice) => {
                let threads = match target.is_thread {
                    true => renice_thread(target.id, *nice).map(usize::from),
                    false => renice_process(target.id, *nice),
                };
                (target, threads.map(|n| (n > 0).then(|| format!("set nice value {nice}"))))
            }
        };
        match done {
            Ok(Some(what)) => format!("{what}: {target}"),
            Ok(None) => format!("{target} has ended"),
            Err(error) => Failure::from(error).to_string(),
        }
    }
}

/// The name of a signal.
pub(crate) fn name(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("an unknown signal")
}

/// The signal with a number, or with a name with or without `SIG`; SIGTERM for an empty text.
///
/// # Errors
/// A line for the user.
pub(crate) fn signal(text: &str) -> Result<i32, String> {
    let upper = match text.trim() {
        "" => "TERM".to_owned(),
        text => text.to_uppercase(),
    };
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_it = |&number: &i32| {
        let name = signal_name(number).and_then(|name| name.strip_prefix("SIG"));
        name.is_some_and(|name| name == short || number.to_string() == short)
    };
    (1..=SIGNAL_MAX).find(is_it).ok_or_else(|| {
        format!("there is no signal '{text}': write a name such as KILL, or a number such as 9")
    })
}

/// A nice value.
///
/// # Errors
/// A line for the user.
pub(crate) fn nice(text: &str) -> Result<i32, String> {
    let value = text.trim().parse().ok().filter(|nice| NICE.contains(nice));
    value.ok_or_else(|| format!("'{text}' is not a nice value: write a number from -20 to 19"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_linux::process_id;
    use corebeat_test_group::TestGroup;
    use rustix::process::{Pid, getpriority_process};
    use signal_hook::consts::{SIGKILL, SIGTERM, SIGUSR1};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Child;

    fn sleeper(group: &TestGroup) -> (Child, Target) {
        let child = group.sleeper();
        let id = process_id(child.id() as i32).unwrap();
        (child, Target { id, is_thread: false, name: "a\nb".into() })
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["", " ", "TERM", "term", "SIGTERM", "15"] {
            assert_eq!(signal(text), Ok(SIGTERM), "{text}");
        }
        assert_eq!((signal("usr1"), signal("9")), (Ok(SIGUSR1), Ok(SIGKILL)));
        for text in ["SIG", "0", "-9", "99", "kill -9", "signal"] {
            assert!(signal(text).unwrap_err().contains("write a name"), "{text}");
        }
        assert_eq!((nice("-20"), nice(" 19 ")), (Ok(-20), Ok(19)));
        for text in ["", "20", "-21", "x", "1.5"] {
            assert!(nice(text).unwrap_err().contains("from -20 to 19"), "{text}");
        }
    }

    #[test]
    fn kill_ends_the_process_and_not_a_later_one_with_its_number() {
        let group = TestGroup::new();
        let (mut child, target) = sleeper(&group);
        let id = ThreadId { start_ticks: target.id.start_ticks + 1, ..target.id };
        let later = Target { id, ..target.clone() };
        assert!(Change::Signal(later, SIGKILL).carry_out().ends_with("(a\\nb) has ended"));
        assert!(child.try_wait().unwrap().is_none());
        let line = Change::Signal(target.clone(), SIGTERM).carry_out();
        assert_eq!(line, format!("sent SIGTERM: process {} (a\\nb)", child.id()));
        assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
        assert!(Change::Signal(target, SIGTERM).carry_out().ends_with("has ended"));
    }

    #[test]
    fn renice_sets_the_nice_value_of_the_process_or_thread() {
        let group = TestGroup::new();
        let (mut child, process) = sleeper(&group);
        let nice = || getpriority_process(Some(Pid::from_child(&child))).unwrap();
        assert!(
            Change::Nice(process.clone(), 18).carry_out().starts_with("set nice value 18: proc")
        );
        assert_eq!(nice(), 18);
        let thread = Target { is_thread: true, ..process.clone() };
        assert!(Change::Nice(thread, 19).carry_out().starts_with("set nice value 19: thread"));
        assert_eq!(nice(), 19);
        drop(group);
        child.wait().unwrap();
        assert!(Change::Nice(process, 19).carry_out().ends_with("has ended"));
    }
}
