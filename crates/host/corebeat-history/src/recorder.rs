//! The thread that writes the history.

use crate::{Error, Frame, Store};
use corebeat_sync::quiet;
use corebeat_web::{Claim, Update};
use std::collections::VecDeque;
use std::io::{self, ErrorKind::NotFound};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time from one write to the next. A killed daemon loses the observations of at most this time.
pub const WRITE_EACH: Duration = Duration::from_secs(10);
/// Largest number of updates that wait for the thread, while it writes.
const UPDATES_WAITING_MAX: usize = 32;
/// Largest number of frames that wait for a file that cannot be written. The last ones are kept.
const FRAMES_WAITING_MAX: usize = 120;
/// Nice value of the thread above that of its process: writing must not delay the control loop.
const NICE: i32 = 5;

/// The thread that writes the history.
#[derive(Debug)]
pub struct Recorder(JoinHandle<()>);

impl Recorder {
    /// Starts to write the updates that the sender receives, into the history in a folder.
    /// `report` receives one line about each event that the user should learn, such as a full disk:
    /// no failure ends the thread. The thread writes the last updates when all senders are dropped.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn start(
        dir: PathBuf,
        report: impl FnMut(String) + Send + 'static,
    ) -> io::Result<(SyncSender<Update>, Recorder)> {
        let (sender, updates) = sync_channel(UPDATES_WAITING_MAX);
        let thread = quiet::spawn("history", move || {
            // Without the value, writes cost the control loop more time; nothing else changes.
            let _ = rustix::process::nice(NICE);
            Writer::new(dir, report).serve(&updates);
        })?;
        Ok((sender, Recorder(thread)))
    }

    /// Waits until the last updates are written. All senders must have been dropped.
    pub fn finish(self) {
        // A panic is printed where it occurs.
        let _ = self.0.join();
    }
}

struct Writer<R> {
    dir: PathBuf,
    /// `None` until the history can be opened.
    store: Option<Store>,
    frames: VecDeque<Frame>,
    /// The claims of the last update, with names.
    claims: Vec<Claim>,
    boot: u64,
    begins: bool,
    /// Number of frames that were left out since the first failed write; `None` if the last write
    /// has succeeded.
    failed: Option<usize>,
    report: R,
}

impl<R: FnMut(String)> Writer<R> {
    fn new(dir: PathBuf, report: R) -> Writer<R> {
        Writer {
            dir,
            store: None,
            frames: VecDeque::new(),
            claims: vec![],
            boot: boot(),
            begins: true,
            failed: None,
            report,
        }
    }

    fn serve(&mut self, updates: &Receiver<Update>) {
        let mut due: Option<Instant> = None;
        // A history that cannot be opened is reported at once.
        let mut pause = Duration::ZERO;
        loop {
            let received = match due {
                None => updates.recv().map_err(RecvTimeoutError::from),
                Some(due) => updates.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(mut update) => {
                    update.name_claims(&self.claims);
                    self.claims.clone_from(&update.claims);
                    self.frames.push_back(Frame::of(update, self.boot, self.begins));
                    self.begins = false;
                    due.get_or_insert_with(|| Instant::now() + pause);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.write();
                    pause = WRITE_EACH;
                    due = Some(Instant::now() + WRITE_EACH).filter(|_| !self.frames.is_empty());
                }
                Err(RecvTimeoutError::Disconnected) => return self.write(),
            }
        }
    }

    /// Writes the frames that wait. A daemon that has failed to start has none, and leaves the
    /// folder as it was.
    fn write(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        match self.try_write() {
            Ok(()) => {
                self.frames.clear();
                if let Some(left_out) = self.failed.take() {
                    (self.report)(format!(
                        "the history is written again; observations left out: {left_out}"
                    ));
                }
            }
            Err(e) => {
                // A removed folder is created again, with its lock.
                if matches!(&e, Error::File { source, .. } if source.kind() == NotFound) {
                    self.store = None;
                }
                if self.failed.is_none() {
                    let each_s = WRITE_EACH.as_secs();
                    (self.report)(format!(
                        "the history is not written: {e}; the daemon goes on without, and tries \
                         again each {each_s} s"
                    ));
                }
                let excess = self.frames.len().saturating_sub(FRAMES_WAITING_MAX);
                self.frames.drain(..excess);
                *self.failed.get_or_insert(0) += excess;
            }
        }
    }

    fn try_write(&mut self) -> Result<(), Error> {
        let store = match &mut self.store {
            Some(store) => store,
            none => none.insert(Store::open(&self.dir, &mut self.report)?),
        };
        store.append(self.frames.make_contiguous(), &mut self.report)
    }
}

/// Number of the present boot.
fn boot() -> u64 {
    let id = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    let digits: String =
        id.unwrap_or_default().chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // Without the identifier, each daemon counts as one of another boot.
    u64::from_str_radix(&digits, 16).unwrap_or_else(|_| corebeat_host::now_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SECOND: u64 = 1_000_000_000;

    fn update(second: u64) -> Update {
        let at_ns = second * SECOND;
        Update { at_ns, span_ns: SECOND, boot_ns: at_ns, unix_ns: at_ns, ..Update::default() }
    }

    #[test]
    fn last_updates_are_written_when_the_daemon_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, received) = channel();
        let to_folder = dir.path().join("new/folder");
        let report = move |line| lines.send(line).unwrap();
        let (sender, recorder) = Recorder::start(to_folder.clone(), report).unwrap();
        (1..=3).for_each(|second| sender.send(update(second)).unwrap());
        drop(sender);
        recorder.finish();
        assert_eq!(received.into_iter().collect::<Vec<_>>(), Vec::<String>::new());
        let frames = crate::read(&to_folder, 0, u64::MAX).unwrap().frames;
        let found: Vec<_> = frames.iter().map(|(at, frame)| (*at, frame.begins)).collect();
        assert_eq!(found, [(1000, true), (2000, false), (3000, false)]);
    }

    #[test]
    fn daemon_without_an_update_leaves_the_folder_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, recorder) = Recorder::start(dir.path().into(), |_| {}).unwrap();
        drop(sender);
        recorder.finish();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn history_that_cannot_be_written_is_reported_once_and_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("blocked");
        std::fs::write(&blocked, "a file, where a folder should be").unwrap();
        let mut lines = vec![];
        let mut writer = Writer::new(blocked.join("history"), |line| lines.push(line));
        for second in 1..=FRAMES_WAITING_MAX as u64 + 5 {
            writer.frames.push_back(Frame::of(update(second), 1, second == 1));
            writer.write();
        }
        assert_eq!(writer.frames.len(), FRAMES_WAITING_MAX);
        std::fs::remove_file(&blocked).unwrap();
        writer.write();
        drop(writer);
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.starts_with("the history is not written: cannot use "), "{first}");
        assert_eq!(second, "the history is written again; observations left out: 5");
        assert_eq!(crate::read(&blocked.join("history"), 0, u64::MAX).unwrap().frames.len(), 120);
    }

    #[test]
    fn removed_folder_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("history");
        let mut lines = vec![];
        let mut writer = Writer::new(folder.clone(), |line| lines.push(line));
        for second in 1..=3 {
            writer.frames.push_back(Frame::of(update(second), 1, second == 1));
            writer.write();
            if second == 1 {
                std::fs::remove_dir_all(&folder).unwrap();
            }
        }
        drop(writer);
        assert!(lines.len() == 2 && lines[1].contains("written again"), "{lines:?}");
        assert_eq!(crate::read(&folder, 0, u64::MAX).unwrap().frames.len(), 2);
    }
}
