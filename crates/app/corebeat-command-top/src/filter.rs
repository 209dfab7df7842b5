//! The filter of rows.

use crate::process::Process;
use crate::view::{Program, Thread};

/// A text to search for, in small letters. An empty text is part of everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Filter(String);

impl Filter {
    pub(crate) fn new(text: &str) -> Self {
        Filter(text.to_lowercase())
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The threads of a program that match; all threads if the program itself matches. `None` if
    /// neither the program nor a thread matches.
    pub(crate) fn threads<'a>(&self, program: &'a Program) -> Option<Vec<&'a Thread>> {
        let all = self.matches(&program.name, &program.process);
        let matches = |t: &&Thread| all || self.matches(&t.name, &t.process);
        let threads: Vec<&Thread> = program.threads.iter().filter(matches).collect();
        (all || !threads.is_empty()).then_some(threads)
    }

    fn matches(&self, name: &str, process: &Process) -> bool {
        let texts = [Some(name), process.user.as_deref(), process.command.as_deref()];
        self.0.is_empty() || texts.iter().flatten().any(|t| t.to_lowercase().contains(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{snapshot, thread};

    #[test]
    fn filter_searches_names_users_and_command_lines() {
        let threads = vec![thread(7, 7, "Main", [0.0; 4]), thread(7, 8, "worker", [0.0; 4])];
        let mut program = Program::whole(7, &snapshot(threads).programs[0], 1);
        program.process.user = Some("Alice".into());
        program.process.command = Some("/bin/Solve --all".into());
        let found = |text: &str| Filter::new(text).threads(&program).map(|threads| threads.len());
        assert_eq!((found(""), found("alice"), found("SOLVE --a")), (Some(2), Some(2), Some(2)));
        assert_eq!((found("work"), found("main"), found("bob")), (Some(1), Some(1), None));
    }
}
