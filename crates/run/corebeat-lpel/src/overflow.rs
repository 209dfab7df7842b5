//! A task that runs over the end of its stack: says which, and how to help it, before the program dies.

use crate::current;
use crate::task::Header;
use std::sync::{Once, OnceLock};

/// What was there before, for faults that are none of ours.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();
const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs the handler, once in a process. It runs on the stack for signals that std gives each thread.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    if cfg!(any(miri, loom, corebeat_threads)) {
        return;
    }
    ONCE.call_once(|| {
        let before = SIGNALS.map(|signal| {
            // SAFETY: reads what is installed.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut before);
                before
            }
        });
        let _ = BEFORE.set(before);
        for signal in SIGNALS {
            // SAFETY: the handler does only what a handler may.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid description.
    let address = unsafe { (*info).si_addr() }.addr();
    let task = current::with(|c| c.task.get());
    // SAFETY: the running task is alive.
    if let Some(task) = unsafe { task.as_ref() } {
        let guard = task.guard.get();
        if (guard..guard + crate::stack::GUARD).contains(&address) {
            tell(task);
            // SAFETY: ends the program.
            unsafe { libc::abort() };
        }
    }
    let before = BEFORE.get().zip(SIGNALS.iter().position(|s| *s == signal)).map(|(b, n)| b[n]);
    // SAFETY: hands over to what was there before, as the kernel would have called it.
    unsafe {
        match before {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            }
            Some(before) => {
                // The fault comes again, and meets it.
                libc::sigaction(signal, &before, std::ptr::null_mut());
            }
            None => libc::abort(),
        }
    }
}

/// Of a name, so many characters are shown.
const NAME_MAX: usize = 64;

/// Writes one line, without allocating.
fn tell(task: &Header) {
    let mut line = Line { text: [0; 512], length: 0 };
    use std::fmt::Write;
    let _ = write!(line, "corebeat-lpel: task {}", task.id);
    if let Some(name) = task.name.as_deref() {
        let _ = line.write_str(" '");
        for char in name.chars().take(NAME_MAX) {
            let _ = line.write_char(char);
        }
        let _ = line.write_char('\'');
    }
    let _ = writeln!(
        line,
        " has overflowed its stack of {} bytes: give it more with Task::stack_size",
        task.stack_size
    );
    // SAFETY: writes what is there.
    unsafe { libc::write(libc::STDERR_FILENO, line.text.as_ptr().cast(), line.length) };
}

struct Line {
    text: [u8; 512],
    length: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = &mut self.text[self.length..];
        let length = s.len().min(room.len());
        room[..length].copy_from_slice(&s.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
