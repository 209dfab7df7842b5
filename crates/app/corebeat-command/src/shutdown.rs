//! Work that must run when a signal ends this process. One watcher thread serves the whole process.
//!
//! ```text
//!   a signal of `ending_signals` --> watcher: runs all work, last registered first --> the process
//!                                    ends by that signal
//! ```
//!
//! A thread whose operation fails because the work removes its files blocks in the `Drop` of its
//! [`Cleanup`], so that it reports no error.

use corebeat_linux::{end_by, ending_signals, is_ignored};
use signal_hook::flag::register_usize;
use signal_hook::low_level::pipe;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// The registered work, each piece with its number.
struct Registry {
    has_watcher: bool,
    next: u64,
    works: Vec<(u64, Work)>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { has_watcher: false, next: 0, works: Vec::new() });

/// Registered work. It runs if a signal ends the process while this value exists.
#[derive(Debug)]
pub struct Cleanup(u64);

impl Cleanup {
    /// Registers work.
    ///
    /// # Errors
    /// If the signal handlers or the watcher thread cannot be set up.
    pub fn on_signal(work: impl FnOnce() + Send + 'static) -> io::Result<Cleanup> {
        let mut registry = registry();
        if !registry.has_watcher {
            start_watcher()?;
            registry.has_watcher = true;
        }
        let number = registry.next;
        registry.next += 1;
        registry.works.push((number, Box::new(work)));
        Ok(Cleanup(number))
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // While the watcher ends the process it holds the lock, and this call does not return.
        registry().works.retain(|(number, _)| *number != self.0);
    }
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the watcher. It is never stopped: a signal whose handler is removed would be ignored.
fn start_watcher() -> io::Result<()> {
    let (received, mut receiver) = (record_ending_signals()?, wake_at_ending_signal()?);
    let watch = move || {
        if receiver.read_exact(&mut [0]).is_ok() {
            let mut registry = registry();
            while let Some((_, work)) = registry.works.pop() {
                work();
            }
            end_by(received.load(Ordering::SeqCst) as i32);
        }
    };
    thread::Builder::new().name("corebeat-end".into()).spawn(watch).map(drop)
}

/// Records the number of the last signal that would end this process and that its parent does not
/// make it ignore; 0 before the first. Lasts until the end of the process.
pub(crate) fn record_ending_signals() -> io::Result<Arc<AtomicUsize>> {
    let received = Arc::new(AtomicUsize::new(0));
    for signal in ending_signals().filter(|signal| !is_ignored(*signal)) {
        register_usize(signal, Arc::clone(&received), signal as usize)?;
    }
    Ok(received)
}

/// Returns a socket that becomes readable when a signal requests the end of this process: each that
/// would end the process and that its parent does not make it ignore (`nohup` does). Lasts until
/// the end of the process.
///
/// # Errors
/// If no descriptor is free, or a handler cannot be installed.
pub fn wake_at_ending_signal() -> io::Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    // All handlers, which are never removed, share the descriptor.
    let sender = sender.into_raw_fd();
    for signal in ending_signals().filter(|signal| !is_ignored(*signal)) {
        pipe::register_raw(signal, sender)?;
    }
    Ok(receiver)
}
