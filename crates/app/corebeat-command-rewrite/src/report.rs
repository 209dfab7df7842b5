//! The progress of a long run: a line on the terminal, and heartbeats. The threads of a run: a
//! fixed number, or those of a claim of CPUs.

use clap::Args;
use corebeat_claim::{Ask, Claim};
use corebeat_command::Failure;
use corebeat_heartbeat::{Group, Producer};
use corebeat_rewrite::{Options as RunOptions, Progress};
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
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
    /// Set the number of threads
    #[arg(short, long, default_value_t = 1, value_parser = threads)]
    threads: usize,
    /// Claim up to NUMBER CPUs, and let as many threads work as the claim has CPUs
    #[arg(long, value_name = "NUMBER", value_parser = threads, conflicts_with = "threads")]
    claim: Option<usize>,
}

/// Largest number of threads that the options accept.
const THREADS_MAX: usize = 256;

/// A number of threads on the command line.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(threads),
        _ => Err(format!("write a number from 1 to {THREADS_MAX}")),
    }
}

/// A claim of CPUs, and the number of its CPUs for the run.
struct Claimed {
    claim: Claim,
    workers: Arc<AtomicUsize>,
}

impl Claimed {
    fn new(most: usize) -> Result<Claimed, Failure> {
        let mut claim = Claim::begin().map_err(Failure::internal)?;
        claim.invade(Ask::new(1, most as u32)).map_err(Failure::internal)?;
        let mut claimed = Claimed { claim, workers: Arc::default() };
        claimed.publish();
        Ok(claimed)
    }

    fn publish(&mut self) {
        // Relaxed: the number publishes no data.
        self.workers.store(self.claim.cpus().len(), Relaxed);
    }

    /// Releases CPUs that other claims request, and accepts granted ones. After an error, the claim
    /// keeps its CPUs, and the next call tries again.
    fn poll(&mut self) {
        if self.claim.poll().is_ok() {
            self.publish();
        }
    }
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
    progress: Arc<Progress>,
    threads: usize,
    workers: Option<Arc<AtomicUsize>>,
    line: Arc<Line>,
    /// Dropped first, which ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Begins the claim, and starts the thread, which attaches to the group.
    pub(crate) fn start(options: &ReportOptions) -> Result<Reporter, Failure> {
        let claimed = options.claim.map(Claimed::new).transpose()?;
        let workers = claimed.as_ref().map(|claimed| claimed.workers.clone());
        let threads = options.claim.unwrap_or(options.threads);
        let (progress, line) = (Arc::new(Progress::default()), Arc::new(Line::default()));
        let ((end, ended), (attached, attachment)) = (channel(), channel());
        let (of_thread, group) = ((progress.clone(), line.clone()), options.group);
        let body = move || match group.map(|number| Group::new(number).produce()).transpose() {
            Ok(producer) => {
                let _ = attached.send(Ok(()));
                report(&of_thread.0, &of_thread.1, producer.as_ref(), claimed, &ended);
            }
            Err(why) => drop(attached.send(Err(why))),
        };
        let thread =
            Builder::new().name("progress".into()).spawn(body).map_err(Failure::internal)?;
        match attachment.recv() {
            Ok(Ok(())) => {
                let (end, thread) = (Some(end), Some(thread));
                Ok(Reporter { progress, threads, workers, line, end, thread })
            }
            Ok(Err(why)) => Err(Failure::internal(why)),
            Err(why) => Err(Failure::internal(why)),
        }
    }

    /// Parameters of a run with the threads of the options, whose progress is reported.
    pub(crate) fn run_options(&self) -> RunOptions {
        RunOptions {
            threads: self.threads,
            workers: self.workers.clone(),
            progress: Some(self.progress.clone()),
            ..RunOptions::default()
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
fn report(
    progress: &Progress,
    line: &Line,
    producer: Option<&Producer>,
    mut claimed: Option<Claimed>,
    end: &Receiver<()>,
) {
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
        claimed.iter_mut().for_each(Claimed::poll);
        let time = last.1.elapsed();
        if is_terminal && time >= LINE_PERIOD {
            let rate = (total - last.0) as f64 / time.as_secs_f64();
            line.show(&format!("{matches} matches, {rewrites} rewrites, {rate:.0} per second"));
            last = (total, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_the_claim() {
        let mut claimed = Claimed::new(THREADS_MAX).unwrap();
        let before = claimed.workers.load(Relaxed);
        assert!(before >= 1);
        // Without a CPU that is free, the other claim requests one of the first claim.
        let mut other = Claim::begin().unwrap();
        other.invade(Ask::new(1, 1)).unwrap();
        claimed.poll();
        let workers = claimed.workers.load(Relaxed);
        assert_eq!(workers, claimed.claim.cpus().len());
        assert!(workers < before || before == 1, "{workers} of {before}");
    }
}
