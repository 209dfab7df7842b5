//! io_uring: multishot poll requests, whose reports arrive in memory that the kernel shares with
//! the program.
//!
//! A request reports each change of its descriptor, as edge-triggered epoll does, and needs no
//! system call to continue. The kernel runs a part of each report on the thread that submitted the
//! request. It also calls each thread that has created or used a ring when the ring is closed. For
//! both it interrupts the system call in which the thread waits, and some calls then fail with
//! `EINTR`. So only threads of a server use a ring, which exist until their requests have ended:
//!
//! | step | thread |
//! | --- | --- |
//! | a ring is created | one that ends at once |
//! | a request is submitted | the one that waits; others queue the descriptor, and ring a bell |
//! | a request is cancelled | the thread of the server that closes or moves the connection |
//!
//! The kernel does not interrupt a thread that runs (`IORING_SETUP_COOP_TASKRUN`, Linux 5.19). Such
//! a thread gets its reports at the end of its next system call or interrupt, several at once.
//!
//! A thread in a wait that nothing interrupts, as for a disk, delays the reports of its requests.
//! Where one thread at a time both waits and handles, these are its own connections. In
//! Leader/Followers they would be those of all threads, so a further thread, which only submits
//! requests and sleeps, has them ([`Uring::with_submitter`]).
//!
//! The flags of a report are those with which the socket woke the request. They contain the flag of
//! urgent data whenever data arrives. So a short read after a report is never a proof that the next
//! read would find nothing, and a server makes one more read for each report than with epoll.
//!
//! A request keeps its file open. [`Notify::remove`] therefore cancels the request at once, so that
//! the peer receives the end of a connection when the program closes the connection.

use super::epoll::{bell, ring, timespec};
use super::poll::event;
use super::{Event, Interest, Notify, RESERVED};
use corebeat_sync::descriptor::StandardTaken;
use corebeat_sync::fork::KeptOut;
use corebeat_sync::{Mutex, lock, quiet, thread};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of entries by which one system call submits changes.
const CHANGES: u32 = 64;
/// Number of reports in the shared memory. The kernel ends a request for which there is no room,
/// and keeps its last report.
const REPORTS: u32 = 4096;
/// Number of reports in the memory of the program at which it takes no more from the kernel.
const READY_MAX: usize = 4096;
/// Number of attempts to submit changes while the system lacks memory.
const TRIES_MAX: usize = 1000;
/// Time after which they are submitted again.
const SHORTAGE: Duration = Duration::from_millis(10);
/// Key of the requests that cancel others. [`crate::table`] does not use it.
const CANCEL: u64 = RESERVED - 2;

pub(crate) struct Uring {
    changes: Mutex<Changes>,
    /// Number of keys in [`Changes::ended`].
    ended: AtomicUsize,
    /// Held by the thread that waits, which alone takes reports from the kernel.
    reader: Mutex<()>,
    bell: OwnedFd,
    /// Rung for the thread that submits the requests; `None` if the one that waits submits them.
    submitter: Option<OwnedFd>,
    /// Dropped before the file is closed.
    _kept_out: KeptOut,
    ring: IoUring,
}

/// A set with a thread of its own, which submits the requests.
pub(crate) struct Submitted {
    set: Arc<Uring>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Changes {
    /// Descriptors for which the next wait submits requests.
    new: Vec<(u64, RawFd)>,
    /// Keys whose requests the next wait cancels.
    old: Vec<u64>,
    has_bell: bool,
    /// All keys of the set.
    known: HashSet<u64>,
    /// Keys whose request has ended, with its error. The next [`Notify::rearm`] submits another
    /// request.
    ended: HashMap<u64, Option<Errno>>,
    /// Reports in their order, of which some may have become outdated.
    ready: VecDeque<Event>,
    is_waiting: bool,
}

impl Uring {
    /// # Errors
    ///
    /// The system does not permit io_uring, lacks a feature, or lacks descriptors or memory.
    pub(crate) fn new() -> io::Result<Uring> {
        Uring::with_sizes(CHANGES, REPORTS)
    }

    /// Returns a set whose waiting threads may handle events of other threads.
    ///
    /// # Errors
    ///
    /// As for [`Uring::new`], and if the system refuses a thread.
    pub(crate) fn with_submitter() -> io::Result<Submitted> {
        let set = Arc::new(Uring { submitter: Some(bell()?), ..Uring::new()? });
        let is_over = Arc::new(AtomicBool::new(false));
        let run = {
            let (set, is_over) = (set.clone(), is_over.clone());
            move || set.submit_until(&is_over)
        };
        let thread = Some(quiet::spawn("reactor submit", run)?);
        Ok(Submitted { set, is_over, thread })
    }

    /// Submits requests until the flag is set and the bell has been rung.
    fn submit_until(&self, is_over: &AtomicBool) {
        let Some(bell) = &self.submitter else { return };
        loop {
            // Before the changes are read, so that a later one rings it again.
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            let submitted = self.submit_changes(&mut lock(&self.changes));
            let time = submitted.is_err().then_some(SHORTAGE);
            // The kernel interrupts this wait for each report.
            let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], timespec(time).as_ref());
        }
    }

    fn with_sizes(changes: u32, reports: u32) -> io::Result<Uring> {
        let create = move || {
            KeptOut::descriptor(|| {
                let _taken = StandardTaken::new()?;
                let mut builder = IoUring::builder();
                builder.setup_clamp().setup_submit_all().setup_coop_taskrun();
                builder.setup_cqsize(reports);
                let ring: IoUring = builder.build(changes)?;
                // A filter may permit to create a ring, and forbid to use it.
                ring.submitter().submit()?;
                Ok(ring)
            })
        };
        // First, so that no failure closes the ring before its `KeptOut` is dropped.
        let bell = bell()?;
        let created = quiet::spawn("reactor ring", create)?.join();
        let (kept_out, ring) = created.unwrap_or_else(|panic| resume_unwind(panic))?;
        let set = Uring {
            changes: Mutex::default(),
            ended: AtomicUsize::new(0),
            reader: Mutex::default(),
            bell,
            submitter: None,
            _kept_out: kept_out,
            ring,
        };
        let features = set.ring.params();
        if !features.is_feature_ext_arg() || !features.is_feature_skip_cqe_on_success() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(set)
    }

    /// Queues an entry for the kernel. The caller has locked the changes.
    fn push(&self, changes: &mut Changes, entry: &squeue::Entry) -> io::Result<()> {
        let push = || {
            // SAFETY: the lock of the changes excludes other users of the queue.
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: no entry refers to memory, and the kernel checks descriptors.
            unsafe { queue.push(entry) }
        };
        if push().is_err() {
            self.submit(changes)?;
            push().map_err(|_| io::Error::from(Errno::BUSY))?;
        }
        Ok(())
    }

    /// Returns whether the kernel has taken all queued entries. The caller has locked the changes.
    fn is_submitted(&self, _: &mut Changes) -> bool {
        // SAFETY: the lock of the changes excludes other users of the queue.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Submits the queued entries. After a failure, the rest is in the queue.
    fn submit(&self, changes: &mut Changes) -> io::Result<()> {
        for _ in 0..TRIES_MAX {
            // The kernel may take a part of the entries while it lacks memory.
            match self.ring.submitter().submit() {
                Ok(_) if self.is_submitted(changes) => return Ok(()),
                Err(why) if !is_temporary(&why) => return Err(why),
                _ => thread::yield_now(),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Submits the requests that wait for it. After a failure, the next call submits the rest.
    fn submit_changes(&self, changes: &mut Changes) -> io::Result<()> {
        if !std::mem::replace(&mut changes.has_bell, true) {
            changes.new.push((RESERVED, self.bell.as_raw_fd()));
        }
        self.push_old(changes)?;
        while let Some((key, fd)) = changes.new.last().copied() {
            // A bell is always writable.
            let is_bell = key == RESERVED;
            let read = PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP;
            let flags = if is_bell { PollFlags::IN } else { read | PollFlags::OUT };
            let request = opcode::PollAdd::new(Fd(fd), flags.bits().into()).multi(true);
            self.push(changes, &request.build().user_data(key))?;
            changes.new.pop();
        }
        self.submit_rest(changes)
    }

    /// Queues the entries that cancel requests.
    fn push_old(&self, changes: &mut Changes) -> io::Result<()> {
        while let Some(key) = changes.old.last().copied() {
            self.push(changes, &cancel(key))?;
            changes.old.pop();
        }
        Ok(())
    }

    /// Submits the queued entries, without a system call if there are none.
    fn submit_rest(&self, changes: &mut Changes) -> io::Result<()> {
        if self.is_submitted(changes) { Ok(()) } else { self.submit(changes) }
    }

    /// Cancels requests on the calling thread. After a failure, the thread that submits requests
    /// cancels the rest; until then, these requests keep their files open.
    fn cancel_old(&self, changes: &mut Changes) -> io::Result<()> {
        // Requests that are left in the queue must not be submitted by another thread.
        let cancelled = match self.submitter.is_none() || self.is_submitted(changes) {
            true => self.push_old(changes).and_then(|()| self.submit_rest(changes)),
            false => Err(Errno::AGAIN.into()),
        };
        if cancelled.is_err() {
            self.renew(changes);
        }
        cancelled
    }

    /// Lets a wait in progress, or the thread that submits requests, read the changes.
    fn renew(&self, changes: &Changes) {
        if let Some(submitter) = &self.submitter {
            ring(submitter);
        }
        if changes.is_waiting {
            ring(&self.bell);
        }
    }

    fn count_ended(&self, changes: &Changes) {
        // Relaxed: see `rearm`.
        self.ended.store(changes.ended.len(), Ordering::Relaxed);
    }

    /// Waits until the kernel has a report, at most for `time`.
    fn block(&self, time: Option<Duration>) -> io::Result<()> {
        let time = time.map(Timespec::from);
        let limit = match &time {
            Some(time) => SubmitArgs::new().timespec(time),
            None => SubmitArgs::new(),
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // Submits nothing: another thread may have queued entries that only it may submit.
        // SAFETY: with these flags, the kernel reads a `SubmitArgs`, and its time, during the call.
        let waited = unsafe { self.ring.submitter().enter(0, 1, flags.bits(), Some(&limit)) };
        match waited {
            Err(why) if is_temporary(&why) || Errno::from_io_error(&why) == Some(Errno::TIME) => {
                Ok(())
            }
            result => result.map(drop),
        }
    }
}

/// Returns an entry that cancels a request.
fn cancel(key: u64) -> squeue::Entry {
    let cancel = opcode::AsyncCancel::new(key).build().user_data(CANCEL);
    cancel.flags(squeue::Flags::SKIP_SUCCESS)
}

/// Returns whether the call may succeed later.
fn is_temporary(why: &io::Error) -> bool {
    matches!(Errno::from_io_error(why), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

impl Changes {
    /// Removes a key. Returns whether its request must be cancelled.
    fn forget(&mut self, key: u64) -> io::Result<bool> {
        if !self.known.remove(&key) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_new = self.new.iter().position(|(own, _)| *own == key);
        if let Some(at) = is_new {
            self.new.swap_remove(at);
        }
        Ok(is_new.is_none() && self.ended.remove(&key).is_none())
    }

    /// Notes a report of the kernel.
    fn note(&mut self, report: &cqueue::Entry) {
        let (key, result) = (report.user_data(), report.result());
        match key {
            RESERVED => self.has_bell &= cqueue::more(report.flags()),
            CANCEL => {}
            // A report of a removed descriptor, such as that of its cancelled request.
            _ if !self.known.contains(&key) => {}
            _ => {
                let error = (result < 0).then(|| Errno::from_raw_os_error(-result));
                if !cqueue::more(report.flags()) {
                    self.ended.insert(key, error);
                }
                // The owner finds an error when it waits again.
                let flags = if error.is_some() { PollFlags::empty() } else { flags(result) };
                self.ready.push_back(event(key, flags));
            }
        }
    }
}

/// Returns the flags in the result of a request.
fn flags(result: i32) -> PollFlags {
    PollFlags::from_bits_truncate(result as _)
}

impl Notify for Uring {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, _: Interest) -> io::Result<()> {
        let mut changes = lock(&self.changes);
        changes.known.insert(key);
        changes.new.push((key, fd.as_raw_fd()));
        self.renew(&changes);
        Ok(())
    }

    fn rearm(&self, fd: BorrowedFd<'_>, key: u64, _: Interest, is_drained: bool) -> io::Result<()> {
        // Relaxed: the report that the caller has handled came after the end of its request was
        // counted. A later end has a report of its own.
        if is_drained && self.ended.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut changes = lock(&self.changes);
        let mut result = Ok(());
        let ended = changes.ended.remove(&key);
        self.count_ended(&changes);
        if let Some(error) = ended {
            // The new request reports the descriptor if it is ready.
            changes.new.push((key, fd.as_raw_fd()));
            result = error.map_or(Ok(()), |error| Err(error.into()));
        } else if is_drained {
            return Ok(());
        } else {
            // No change may follow, so this report replaces that of the kernel.
            changes.ready.push_back(event(key, PollFlags::IN | PollFlags::OUT));
        }
        self.renew(&changes);
        result
    }

    fn remove(&self, _: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let mut changes = lock(&self.changes);
        let is_cancelled = changes.forget(key)?;
        self.count_ended(&changes);
        if is_cancelled {
            changes.old.push(key);
            self.cancel_old(&mut changes)?;
        }
        Ok(())
    }

    fn release(&self, _: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let mut changes = lock(&self.changes);
        let is_cancelled = changes.forget(key)?;
        self.count_ended(&changes);
        if is_cancelled {
            changes.old.push(key);
            self.renew(&changes);
        }
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        self.cancel_old(&mut lock(&self.changes))
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
        let _reader = lock(&self.reader);
        events.clear();
        let mut changes = lock(&self.changes);
        let mut time = time;
        if self.submitter.is_none() {
            match self.submit_changes(&mut changes) {
                Err(why) if is_temporary(&why) => {
                    time = Some(time.map_or(SHORTAGE, |time| time.min(SHORTAGE)));
                }
                result => result?,
            }
        } else if !changes.has_bell {
            self.renew(&changes);
        }
        // SAFETY: the lock of the reader excludes other users of the queue.
        let mut reports = unsafe { self.ring.completion_shared() };
        // The kernel keeps all later reports elsewhere until a call takes those without room.
        // SAFETY: the lock of the changes excludes other users of the queue.
        if unsafe { self.ring.submission_shared() }.cq_overflow() {
            self.block(Some(Duration::ZERO))?;
            reports.sync();
        }
        if changes.ready.is_empty() && reports.is_empty() {
            changes.is_waiting = true;
            drop(changes);
            let result = self.block(time);
            changes = lock(&self.changes);
            changes.is_waiting = false;
            result?;
            reports.sync();
        }
        while changes.ready.len() < READY_MAX
            && let Some(report) = reports.next()
        {
            changes.note(&report);
        }
        self.count_ended(&changes);
        let count = changes.ready.len().min(max);
        events.extend(changes.ready.drain(..count));
        Ok(())
    }

    fn wake(&self) {
        ring(&self.bell);
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.set.submitter.iter().for_each(ring);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Notify for Submitted {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.set.add(fd, key, interest)
    }

    fn rearm(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
        is_drained: bool,
    ) -> io::Result<()> {
        self.set.rearm(fd, key, interest, is_drained)
    }

    fn remove(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.set.remove(fd, key)
    }

    fn release(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.set.release(fd, key)
    }

    fn settle(&self) -> io::Result<()> {
        self.set.settle()
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
        self.set.wait(events, max, time)
    }

    fn wake(&self) {
        self.set.wake();
    }
}

#[cfg(all(test, not(loom)))]
#[path = "../../tests/refusal/mod.rs"]
mod refusal;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::refusal::refuse;
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const SECONDS: Option<Duration> = Some(Duration::from_secs(60));

    /// Returns a set; `None`, with a line, if the system does not permit io_uring.
    fn set(changes: u32, reports: u32) -> Option<Uring> {
        Uring::with_sizes(changes, reports)
            .inspect_err(|why| eprintln!("skipped: io_uring is not available ({why})"))
            .ok()
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// Waits for the next reports, and returns their keys and whether each is readable.
    fn next(set: &Uring, max: usize, time: Option<Duration>) -> Vec<(u64, bool)> {
        let mut events = Vec::new();
        set.wait(&mut events, max, time).unwrap();
        events.iter().map(|event| (event.key, event.readable)).collect()
    }

    /// Returns a set with a thread of its own for requests, which has not begun.
    fn set_with_submitter() -> Option<Uring> {
        Some(Uring { submitter: Some(bell().unwrap()), ..set(CHANGES, REPORTS)? })
    }

    /// Calls a function on a thread to which the system refuses all use of rings, as if it lacked
    /// memory, and returns its error.
    fn refused(call: impl FnOnce() -> io::Result<()> + Send) {
        let refused = std::thread::scope(|scope| {
            let run = || {
                refuse(libc::SYS_io_uring_enter, libc::EAGAIN);
                call()
            };
            scope.spawn(run).join().unwrap()
        });
        assert!(is_temporary(&refused.unwrap_err()));
    }

    #[test]
    fn refused_requests_are_submitted_later() {
        let Some(set) = set_with_submitter() else { return };
        let submit = || set.submit_changes(&mut lock(&set.changes));
        let is_submitted = || set.is_submitted(&mut lock(&set.changes));
        let (near, _far) = pair();
        set.add(near.as_fd(), 7, Interest::READ).unwrap();
        refused(submit);
        assert!(!is_submitted());
        submit().unwrap();
        assert!(is_submitted());
        assert_eq!(next(&set, 9, SECONDS), [(7, false)]);
        // Requests that wait for the thread that submits them are not submitted by another one.
        let (second, mut far) = pair();
        set.add(second.as_fd(), 8, Interest::READ).unwrap();
        refused(submit);
        assert!(is_temporary(&set.remove(near.as_fd(), 7).unwrap_err()));
        assert!(!is_submitted());
        submit().unwrap();
        assert_eq!(next(&set, 9, SECONDS), [(8, false)]);
        set.release(second.as_fd(), 8).unwrap();
        refused(|| set.settle());
        submit().unwrap();
        drop(second);
        // The end would not arrive if a request kept the file open.
        assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
    }

    /// A thread that waits may handle events of others afterwards.
    #[test]
    fn waiting_thread_submits_no_request_of_the_thread_for_them() {
        let Some(set) = set_with_submitter() else { return };
        let mut changes = lock(&set.changes);
        let (near, _far) = pair();
        let request = opcode::PollAdd::new(Fd(near.as_raw_fd()), PollFlags::OUT.bits().into());
        set.push(&mut changes, &request.build().user_data(7)).unwrap();
        set.block(Some(Duration::ZERO)).unwrap();
        assert!(!set.is_submitted(&mut changes));
    }

    #[test]
    fn descriptor_is_reported_at_first_and_at_each_change() {
        let Some(set) = set(CHANGES, REPORTS) else { return };
        let (near, mut far) = pair();
        set.add(near.as_fd(), 7, Interest::READ).unwrap();
        assert_eq!(next(&set, 9, SECONDS), [(7, false)], "writable");
        assert_eq!(next(&set, 9, Some(Duration::ZERO)), []);
        for _ in 0..3 {
            far.write_all(b"x").unwrap();
            assert_eq!(next(&set, 9, SECONDS), [(7, true)]);
            assert_eq!((&near).read(&mut [0; 9]).unwrap(), 1);
            set.rearm(near.as_fd(), 7, Interest::READ, true).unwrap();
            assert_eq!(next(&set, 9, Some(Duration::ZERO)), []);
        }
        // Not drained: reported although nothing changes.
        set.rearm(near.as_fd(), 7, Interest::READ, false).unwrap();
        assert_eq!(next(&set, 9, SECONDS), [(7, true)]);
        drop(far);
        assert_eq!(next(&set, 9, SECONDS), [(7, true)]);
    }

    #[test]
    fn removed_descriptor_is_closed_with_its_last_owner() {
        let Some(set) = set(CHANGES, REPORTS) else { return };
        let (near, mut far) = pair();
        set.add(near.as_fd(), 7, Interest::READ).unwrap();
        assert_eq!(next(&set, 9, SECONDS), [(7, false)]);
        set.remove(near.as_fd(), 7).unwrap();
        drop(near);
        // The end would not arrive if a request kept the file open.
        assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
        assert_eq!(next(&set, 9, Some(Duration::ZERO)), []);
        // A descriptor that was removed before the first wait.
        let (near, mut far) = pair();
        set.add(near.as_fd(), 8, Interest::READ).unwrap();
        set.remove(near.as_fd(), 8).unwrap();
        assert!(set.remove(near.as_fd(), 8).is_err());
        drop(near);
        assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
        assert_eq!(next(&set, 9, Some(Duration::ZERO)), []);
    }

    /// The thread that has submitted the request waits, and nothing uses the set meanwhile.
    #[test]
    fn descriptor_that_another_thread_removes_is_closed() {
        let Some(own) = set(CHANGES, REPORTS) else { return };
        let submitted = Uring::with_submitter().unwrap();
        let (near, mut far) = pair();
        far.set_read_timeout(SECONDS).unwrap();
        submitted.add(near.as_fd(), 7, Interest::READ).unwrap();
        let mut events = Vec::new();
        while events.is_empty() {
            submitted.wait(&mut events, 9, SECONDS).unwrap();
        }
        submitted.remove(near.as_fd(), 7).unwrap();
        drop(near);
        assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
        // As before, with a thread that has submitted the request, and sleeps in a wait of the set.
        let ((near, mut far), (stop, mut stopper)) = (pair(), pair());
        far.set_read_timeout(SECONDS).unwrap();
        own.add(near.as_fd(), 7, Interest::READ).unwrap();
        let (reported, is_reported) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(next(&own, 9, SECONDS), [(7, false)]);
                reported.send(()).unwrap();
                while !next(&own, 9, SECONDS).contains(&(8, true)) {}
            });
            is_reported.recv().unwrap();
            own.remove(near.as_fd(), 7).unwrap();
            drop(near);
            assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
            own.add(stop.as_fd(), 8, Interest::READ).unwrap();
            stopper.write_all(b"x").unwrap();
        });
    }

    #[test]
    fn reports_without_room_arrive_beside_a_descriptor_that_is_always_ready() {
        let Some(set) = set(4, 4) else { return };
        let mut pairs: Vec<_> = (0..50).map(|_| pair()).collect();
        for (key, (near, _)) in pairs.iter().enumerate() {
            set.add(near.as_fd(), key as u64, Interest::READ).unwrap();
        }
        for (_, far) in &mut pairs {
            far.write_all(b"x").unwrap();
        }
        let mut missing: HashSet<u64> = (1..50).collect();
        let begin = std::time::Instant::now();
        while !missing.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no report of {missing:?}");
            for (key, is_readable) in next(&set, 3, SECONDS) {
                let near = pairs[key as usize].0.as_fd();
                set.rearm(near, key, Interest::READ, key != 0).unwrap();
                if is_readable {
                    missing.remove(&key);
                }
            }
        }
    }

    #[test]
    fn released_descriptor_is_reported_no_more() {
        let Some(set) = set(CHANGES, REPORTS) else { return };
        let (near, mut far) = pair();
        set.add(near.as_fd(), 7, Interest::READ).unwrap();
        assert_eq!(next(&set, 9, SECONDS), [(7, false)]);
        set.release(near.as_fd(), 7).unwrap();
        assert!(set.release(near.as_fd(), 7).is_err());
        set.settle().unwrap();
        far.write_all(b"x").unwrap();
        drop(near);
        // The request, which had kept the file open, is cancelled.
        assert_eq!(far.read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(next(&set, 9, Some(Duration::ZERO)), []);
    }

    #[test]
    fn wake_up_ends_the_next_wait_and_the_present_one() {
        let Some(set) = set(CHANGES, REPORTS) else { return };
        set.wake();
        assert_eq!(next(&set, 9, None), []);
        set.wake();
        assert_eq!(next(&set, 9, None), []);
        let (near, _far) = pair();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let found = next(&set, 9, None);
                if found.is_empty() { next(&set, 9, None) } else { found }
            });
            // Another thread adds a descriptor, during the wait or before it.
            set.add(near.as_fd(), 7, Interest::READ).unwrap();
            assert_eq!(waiting.join().unwrap(), [(7, false)]);
        });
    }

    /// The memory for reports has room for fewer than there are descriptors, so that the kernel
    /// ends requests.
    #[test]
    fn reports_without_room_are_not_lost() {
        let Some(set) = set(4, 4) else { return };
        let mut pairs: Vec<_> = (0..50).map(|_| pair()).collect();
        for (key, (near, _)) in pairs.iter().enumerate() {
            set.add(near.as_fd(), key as u64, Interest::READ).unwrap();
        }
        for round in 0..20 {
            for (_, far) in &mut pairs {
                far.write_all(&[round]).unwrap();
            }
            let mut missing: HashSet<u64> = (0..50).collect();
            while !missing.is_empty() {
                for (key, _) in next(&set, 3, SECONDS) {
                    let near = &pairs[key as usize].0;
                    let mut byte = [0];
                    if (&*near).read(&mut byte).is_ok_and(|read| read == 1) {
                        assert_eq!(byte[0], round);
                        assert!(missing.remove(&key));
                    }
                    set.rearm(near.as_fd(), key, Interest::READ, true).unwrap();
                }
            }
        }
    }
}
