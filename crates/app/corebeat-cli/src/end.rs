//! What is to be tidied up when a signal ends this process: one watcher for all of it.
//!
//! ```text
//!   SIGTERM, SIGINT, SIGHUP, SIGQUIT  -->  watcher: what was asked for, the last first  -->  dies of that signal
//! ```
//!
//! Whoever is in the midst of something meanwhile, and ends because it is tidied away below it, waits in the `Drop` of
//! its [`Tidy`]: so nobody complains of it.

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// What is to be done, each with its number.
struct Works {
    is_watched: bool,
    next: u64,
    works: Vec<(u64, Work)>,
}

static WORKS: Mutex<Works> = Mutex::new(Works { is_watched: false, next: 0, works: Vec::new() });

/// As long as this is there, its work is done when a signal ends the process.
#[derive(Debug)]
pub(crate) struct Tidy(u64);

impl Tidy {
    /// # Errors
    /// Where signals cannot be taken.
    pub(crate) fn at_end(work: impl FnOnce() + Send + 'static) -> io::Result<Tidy> {
        let mut works = works();
        if !works.is_watched {
            watch()?;
            works.is_watched = true;
        }
        let number = works.next;
        works.next += 1;
        works.works.push((number, Box::new(work)));
        Ok(Tidy(number))
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        // While a signal ends the process this waits, and does not return.
        works().works.retain(|(number, _)| *number != self.0);
    }
}

fn works() -> MutexGuard<'static, Works> {
    WORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on, for good: a signal whose handler goes away again would be ignored.
fn watch() -> io::Result<()> {
    let (mut told, tell) = UnixStream::pair()?;
    let which = Arc::new(AtomicUsize::new(0));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT].into_iter().filter(|signal| !is_ignored(*signal)) {
        register_usize(signal, Arc::clone(&which), signal as usize)?;
        pipe::register(signal, tell.try_clone()?)?;
    }
    let wait = move || {
        if told.read_exact(&mut [0]).is_ok() {
            let mut works = works();
            while let Some((_, work)) = works.works.pop() {
                work();
            }
            let _ = emulate_default_handler(which.load(Ordering::SeqCst) as i32);
        }
    };
    thread::Builder::new().name("corebeat-end".into()).spawn(wait).map(drop)
}

/// Whether who started us wants that (nohup does).
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: null asks for what is there, which is written to a struct of this type, of which zeroes are a value.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
