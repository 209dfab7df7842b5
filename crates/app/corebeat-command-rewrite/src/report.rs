//! The progress of a long run: a line on the terminal, and heartbeats.

use clap::Args;
use corebeat_command::Failure;
use corebeat_heartbeat::{Group, Producer};
use corebeat_rewrite::Progress;
use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two readings of the progress: the sampling period of heartbeats.
const PERIOD: Duration = Duration::from_millis(100);
/// Time between two lines on the terminal.
const LINE_PERIOD: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct ReportOptions {
    /// Emit a heartbeat for each match and each rewrite in this group
    #[arg(long, value_name = "GROUP")]
    group: Option<u32>,
}

/// The line on the terminal: its width.
#[derive(Default)]
struct Line(Mutex<usize>);

impl Line {
    /// Replaces the line. A shorter text covers the old one.
    fn show(&self, text: &str) {
        let mut width = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *width > 0 || !text.is_empty() {
            let _ = write!(stderr(), "\r{text:<width$}{}", if text.is_empty() { "\r" } else { "" });
        }
        *width = text.len();
    }
}

/// A thread that reports the progress until it is dropped.
pub(crate) struct Reporter {
    pub(crate) progress: Arc<Progress>,
    line: Arc<Line>,
    /// Dropped first, which ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts the thread, which attaches to the group of the options.
    pub(crate) fn start(options: &ReportOptions) -> Result<Reporter, Failure> {
        let (progress, line) = (Arc::new(Progress::default()), Arc::new(Line::default()));
        let ((end, ended), (attached, attachment)) = (channel(), channel());
        let (of_thread, group) = ((progress.clone(), line.clone()), options.group);
        let body = move || match group.map(|number| Group::new(number).produce()).transpose() {
            Ok(producer) => {
                let _ = attached.send(Ok(()));
                report(&of_thread.0, &of_thread.1, producer.as_ref(), &ended);
            }
            Err(why) => drop(attached.send(Err(why))),
        };
        let thread =
            Builder::new().name("progress".into()).spawn(body).map_err(Failure::internal)?;
        match attachment.recv() {
            Ok(Ok(())) => Ok(Reporter { progress, line, end: Some(end), thread: Some(thread) }),
            Ok(Err(why)) => Err(Failure::internal(why)),
            Err(why) => Err(Failure::internal(why)),
        }
    }

    /// Removes the line from the terminal, before other output.
    pub(crate) fn clear(&self) {
        self.line.show("");
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.clear();
    }
}

/// The body of the thread.
fn report(progress: &Progress, line: &Line, producer: Option<&Producer>, end: &Receiver<()>) {
    let (is_terminal, mut beats) = (stderr().is_terminal(), 0);
    let mut last = (0, Instant::now());
    loop {
        let is_over = end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected);
        let (matches, rewrites) = (progress.matches(), progress.rewrites());
        let total = matches + rewrites;
        if let Some(producer) = producer {
            producer.beat(total - beats);
            beats = total;
        }
        if is_over {
            return;
        }
        let time = last.1.elapsed();
        if is_terminal && time >= LINE_PERIOD {
            let rate = (total - last.0) as f64 / time.as_secs_f64();
            line.show(&format!("{matches} matches, {rewrites} rewrites, {rate:.0} per second"));
            last = (total, Instant::now());
        }
    }
}
