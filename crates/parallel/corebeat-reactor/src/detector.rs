//! Detectors: each has an interest set, and wakes the tasks that wait for the descriptors in it.
//!
//! The worker of a runtime from [`attach`] has a detector, and turns it whenever it is idle. So the
//! thread that detects an event is the thread that runs the task, and no thread wakes another one.
//! All other callers share one detector with a thread of its own.

use crate::notify::{Epoll, Event, Interest, Notify, Trigger};
use crate::parking::Parking;
use crate::source::Source;
use crate::table::Table;
use corebeat_lpel::{Builder, Park};
use corebeat_sync::fork::PerProcess;
use corebeat_sync::{Mutex, lock, quiet};
use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Number of reports that one turn handles.
const BATCH: usize = 256;

pub(crate) struct Detector {
    /// Whether this is the detector with a thread of its own.
    is_shared: bool,
    notify: Epoll,
    sources: Mutex<Sources>,
    /// Memory for one turn.
    buffers: Mutex<(Vec<Event>, Vec<Waker>)>,
}

#[derive(Default)]
struct Sources {
    table: Table<Arc<Source>>,
    is_closed: bool,
}

/// Membership of a source in a detector.
pub(crate) struct Registration {
    detector: Arc<Detector>,
    key: u64,
}

impl Registration {
    /// Returns whether this is the detector for the calling task or thread.
    pub(crate) fn is_here(&self) -> bool {
        HERE.with_borrow(|here| match here {
            Some(here) => Arc::ptr_eq(here, &self.detector),
            None => self.detector.is_shared,
        })
    }

    /// Returns whether a thread still turns the detector.
    pub(crate) fn is_turned(&self) -> bool {
        !lock(&self.detector.sources).is_closed
    }

    pub(crate) fn remove(self, fd: BorrowedFd<'_>) {
        // The set of a detector that has no thread any more may be closed already.
        let _ = self.detector.notify.remove(fd, self.key);
        let removed = lock(&self.detector.sources).table.remove(self.key);
        drop(removed);
    }
}

impl Detector {
    fn new(is_shared: bool) -> io::Result<Arc<Detector>> {
        Ok(Arc::new(Detector {
            is_shared,
            notify: Epoll::new(Trigger::Edge)?,
            sources: Mutex::default(),
            buffers: Mutex::default(),
        }))
    }

    /// Adds a source, which is reported at once if it is ready.
    pub(crate) fn add(
        self: &Arc<Self>,
        source: &Arc<Source>,
        fd: BorrowedFd<'_>,
    ) -> io::Result<Registration> {
        let key = lock(&self.sources).table.insert(source.clone());
        let registration = Registration { detector: self.clone(), key };
        match self.notify.add(fd, key, Interest::BOTH) {
            Ok(()) => Ok(registration),
            Err(why) => {
                registration.remove(fd);
                Err(why)
            }
        }
    }

    /// Waits for reports at most for `time`, and wakes the tasks that wait for them.
    fn turn(&self, time: Option<Duration>) {
        let mut buffers = std::mem::take(&mut *lock(&self.buffers));
        let (events, wakers) = &mut buffers;
        if let Err(why) = self.notify.wait(events, BATCH, time) {
            // Only an invalid descriptor causes an error, so that the program would hang.
            panic!("cannot wait for sockets ({why}): do not close descriptors of other owners");
        }
        let sources = lock(&self.sources);
        for event in &*events {
            if let Some(source) = sources.table.get(event.key) {
                source.report(event, wakers);
            }
        }
        drop(sources);
        wakers.drain(..).for_each(Waker::wake);
        *lock(&self.buffers) = buffers;
    }

    /// Ends the detector. Tasks that wait for its sources wake up, and register elsewhere.
    fn close(&self) {
        let mut sources = lock(&self.sources);
        sources.is_closed = true;
        let all = sources.table.drain();
        drop(sources);
        let mut wakers = Vec::new();
        all.iter().for_each(|source| source.report_everything(&mut wakers));
        wakers.into_iter().for_each(Waker::wake);
    }
}

thread_local! {
    /// Detector of the worker that runs on this thread.
    static HERE: RefCell<Option<Arc<Detector>>> = const { RefCell::new(None) };
}

/// Returns the detector for the calling task or thread.
///
/// # Errors
///
/// The shared detector cannot be started.
pub(crate) fn here() -> io::Result<Arc<Detector>> {
    match HERE.with_borrow(Option::clone) {
        Some(detector) => Ok(detector),
        None => shared(),
    }
}

/// Returns the detector with a thread of its own. A child of fork has another one.
fn shared() -> io::Result<Arc<Detector>> {
    static SHARED: PerProcess<Mutex<Option<Arc<Detector>>>> = PerProcess::unset();
    let mut shared = lock(SHARED.get(|_| Mutex::new(None)));
    if let Some(detector) = &*shared {
        return Ok(detector.clone());
    }
    let detector = Detector::new(true)?;
    let own = detector.clone();
    quiet::spawn("corebeat reactor", move || {
        loop {
            own.turn(None);
        }
    })?;
    Ok(shared.insert(detector).clone())
}

/// Lets the idle workers of a runtime detect readiness of the sockets that their tasks wait for.
/// Sockets work in every runtime. Without this setting, a separate thread detects readiness and
/// wakes the workers, which takes several microseconds for each wake-up of an idle worker.
///
/// ```
/// use corebeat_lpel::Runtime;
///
/// let runtime = corebeat_reactor::attach(Runtime::builder()).build()?;
/// # assert_eq!(runtime.run(|| 1)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attach(builder: Builder) -> Builder {
    builder.park(|_| {
        let detector = Detector::new(false)?;
        Ok(Box::new(Worker { detector, parking: Parking::new() }))
    })
}

/// Wait of a worker.
struct Worker {
    detector: Arc<Detector>,
    parking: Parking,
}

impl Park for Worker {
    fn enter(&self) {
        HERE.set(Some(self.detector.clone()));
    }

    fn poll(&self) {
        // Without sockets, a runtime makes no system call here.
        if !lock(&self.detector.sources).table.is_empty() {
            self.detector.turn(Some(Duration::ZERO));
        }
    }

    fn park(&self, time: Option<Duration>) {
        self.parking.park(time, |time| self.detector.turn(time));
    }

    fn unpark(&self) {
        self.parking.unpark(|| self.detector.notify.wake());
    }

    fn leave(&self) {
        HERE.set(None);
        self.detector.close();
    }
}
