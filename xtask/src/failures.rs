//! Repeats the failures of a long run of tests at its end, where a reader finds them.

use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Lines kept of a test program that ended without a list of its failures.
const LAST: usize = 40;

/// How cargo announces a test program.
const STARTS: [&str; 2] = ["     Running ", "   Doc-tests "];

/// Time for the last output after the end of cargo. A process that a test left behind may hold the
/// pipe for ever.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `cargo test`, shows its output, and repeats in the end what failed.
pub(crate) fn repeated(command: &mut Command) -> Result<ExitStatus, String> {
    let failed = |e| format!("the output of the tests cannot be read: {e}");
    let (reader, writer) = pipe().map_err(failed)?;
    command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(|e| format!("cargo could not be started: {e}"))?;
    // Close the ends of the pipe in this process.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, lines) = channel();
    std::thread::spawn(move || forward(reader, &sender));
    let mut failures = Failures::default();
    let status = loop {
        match lines.recv_timeout(GRACE) {
            Ok(line) => failures.add(&line),
            Err(RecvTimeoutError::Disconnected) => break child.wait().map_err(failed)?,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait().map_err(failed)? {
                    break status;
                }
            }
        }
    };
    let text = failures.text();
    if !text.is_empty() {
        println!("\n==== failures\n{text}");
    }
    Ok(status)
}

/// Shows what is read, and sends its lines.
fn forward(reader: PipeReader, lines: &Sender<String>) {
    let (mut reader, mut shown) = (BufReader::new(reader), std::io::stdout());
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = shown.write_all(&line).and_then(|()| shown.flush());
        if lines.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
            return;
        }
        line.clear();
    }
}

/// The parts of the output of `cargo test` that describe failures.
#[derive(Default)]
struct Failures {
    /// Lines of the test program that runs.
    current: Vec<String>,
    /// Where its failures begin in `current`.
    begin: Option<usize>,
    /// Whether cargo has reported its failure, whose reason follows.
    is_reported: bool,
    found: Vec<String>,
}

impl Failures {
    fn add(&mut self, line: &str) {
        if STARTS.iter().any(|start| line.starts_with(start)) {
            self.end();
        }
        if line == "failures:" {
            self.begin.get_or_insert(self.current.len());
        }
        self.is_reported |= line.starts_with("error: ");
        self.current.push(line.to_string());
        if self.begin.is_none() && !self.is_reported && self.current.len() > LAST {
            // The first line names the program.
            self.current.remove(1);
        }
    }

    fn end(&mut self) {
        if self.is_reported {
            let begin = self.begin.unwrap_or(0);
            if begin > 0 {
                self.found.extend(self.current.first().cloned());
            }
            self.found.extend(self.current.drain(begin..));
        }
        *self = Failures { found: std::mem::take(&mut self.found), ..Failures::default() };
    }

    fn text(mut self) -> String {
        self.end();
        self.found.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &str) -> String {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.add(line));
        failures.text()
    }

    #[test]
    fn failures_of_a_test_program_are_repeated_with_their_output() {
        let output = "     Running unittests (a)\ntest x ... ok\ntest result: ok. 1 passed\n\
                      \x20    Running unittests (b)\ntest x ... ok\ntest y ... FAILED\n\nfailures:\n\n\
                      ---- y stdout ----\npanicked\n\nfailures:\n    y\n\ntest result: FAILED.\n\n\
                      error: test failed, to rerun pass `-p b --lib`\n\
                      \x20  Doc-tests a\ntest result: ok.\n\
                      error: 1 target failed:\n    `-p b --lib`";
        let repeated = text(output);
        assert!(repeated.starts_with("     Running unittests (b)\nfailures:\n"), "{repeated}");
        assert!(repeated.contains("panicked") && repeated.ends_with("`-p b --lib`"), "{repeated}");
        assert!(!repeated.contains("test x"), "{repeated}");
    }

    #[test]
    fn last_lines_of_a_program_that_a_signal_ended_are_repeated() {
        let many: String = (0..100).map(|i| format!("test t{i} ... ok\n")).collect();
        let output = format!(
            "     Running unittests (b)\n{many}error: test failed, to rerun pass `-p b --lib`\n\n\
             Caused by:\n  process did not exit successfully (signal: 11)\n     Running tests (c)"
        );
        let repeated = text(&output);
        assert!(repeated.starts_with("     Running unittests (b)\ntest t6"), "{repeated}");
        assert!(repeated.contains("test t99 ") && repeated.ends_with("(signal: 11)"), "{repeated}");
    }

    #[test]
    fn tests_that_pass_are_not_repeated() {
        assert_eq!(
            text("     Running unittests (a)\ntest x ... ok\ntest result: ok. 1 passed"),
            ""
        );
    }
}
