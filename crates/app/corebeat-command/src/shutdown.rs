//! Work that must run when a signal ends this process. One watcher thread serves the whole process.
//!
//! ```text
//!   SIGTERM, SIGINT, SIGHUP, SIGQUIT --> watcher: runs all work, last registered first --> the
//!                                        process ends by that signal
//! ```
//!
//! A thread whose operation fails because the work removes its files blocks in the `Drop` of its
//! [`Cleanup`], so that it reports no error.

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::io::{self, Read};
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
    let (mut receiver, sender) = UnixStream::pair()?;
    let received = Arc::new(AtomicUsize::new(0));
    for signal in
        [SIGTERM, SIGINT, SIGHUP, SIGQUIT].into_iter().filter(|signal| !is_ignored(*signal))
    {
        register_usize(signal, Arc::clone(&received), signal as usize)?;
        pipe::register(signal, sender.try_clone()?)?;
    }
    let watch = move || {
        if receiver.read_exact(&mut [0]).is_ok() {
            let mut registry = registry();
            while let Some((_, work)) = registry.works.pop() {
                work();
            }
            let _ = emulate_default_handler(received.load(Ordering::SeqCst) as i32);
        }
    };
    thread::Builder::new().name("corebeat-end".into()).spawn(watch).map(drop)
}

/// Whether the parent process made this process ignore the signal (`nohup` does).
pub fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads the current one into a struct of the right type; all
    // zeroes are a valid value of it.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
