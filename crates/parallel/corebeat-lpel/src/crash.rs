//! Report of a task that overflows its stack, or crashes otherwise, before the program ends as it
//! would without the report; and of a task whose foreign code calls `exit`.

use crate::current;
use crate::task::Header;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::sync::{Once, OnceLock};

/// Earlier handlers, which receive all signals.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Signals that end faulty code in C, with their names: wild pointers, divisions by 0, traps,
/// failed assertions.
const SIGNALS: [(libc::c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
];

/// Installs the handler, once per process. The handler runs on the stack for signals that the
/// standard library allocates for each thread.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    if cfg!(any(miri, loom, corebeat_threads)) {
        return;
    }
    ONCE.call_once(|| {
        let before = SIGNALS.map(|(signal, _)| {
            // SAFETY: reads the installed handler.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut before);
                before
            }
        });
        let _ = BEFORE.set(before);
        for (signal, _) in SIGNALS {
            // SAFETY: the handler calls only functions that are allowed in handlers.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        // SAFETY: the function lives as long as the program. If this fails, an exit is not
        // reported.
        unsafe { libc::atexit(exiting) };
    });
}

/// Exit status of a program that code in [`doing`] has ended by `exit`, whatever status the code
/// chose: the other tasks have lost their results.
const EXITED: libc::c_int = 1;

/// Runs on the thread that calls `exit`.
extern "C" fn exiting() {
    let task = current::with(|c| c.task.get());
    // SAFETY: the running task is alive.
    let Some(task) = (unsafe { task.as_ref() }) else { return };
    if !task.doing.get().is_null() {
        report(task, End::Exit);
        // SAFETY: ends the program. Further exit handlers belong to a program that ends regularly.
        unsafe { libc::_exit(EXITED) };
    }
}

/// Calls `f`. If the process crashes meanwhile, as it may in functions of C, the line that names
/// the task contains `what`. If `f` calls `exit`, such a line is printed as well, and the program
/// ends with status 1. Outside a task, only calls `f`.
#[inline]
pub fn doing<R>(what: &str, f: impl FnOnce() -> R) -> R {
    struct Reset<'a>(&'a Header, *const &'static str);
    impl Drop for Reset<'_> {
        fn drop(&mut self) {
            self.0.doing.set(self.1);
        }
    }
    let task = current::with(|c| c.task.get());
    // SAFETY: the running task is alive while it is in `f`.
    let Some(task) = (unsafe { task.as_ref() }) else { return f() };
    // The handler reads the pointer only during this call, while `what` is valid.
    let _reset = Reset(task, task.doing.replace((&raw const what).cast()));
    // The handler may interrupt any instruction in `f`.
    compiler_fence(Ordering::SeqCst);
    f()
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel provides a valid description. It contains the sender of a signal that a
    // process sent.
    let (code, address, is_sent_by_us) =
        unsafe { ((*info).si_code, (*info).si_addr().addr(), (*info).si_pid() == libc::getpid()) };
    let is_fault = code > 0;
    let before =
        |of| BEFORE.get().zip(SIGNALS.iter().position(|(s, _)| *s == of)).map(|(b, n)| b[n]);
    // Code that is called from here and aborts prints its own message, and this stack has no room
    // for a second call of the handler.
    if let Some(before) = before(libc::SIGABRT) {
        // SAFETY: the earlier handler.
        unsafe { libc::sigaction(libc::SIGABRT, &before, std::ptr::null_mut()) };
    }
    let task = current::with(|c| c.task.get());
    // SAFETY: the running task is alive.
    if let Some(task) = unsafe { task.as_ref() } {
        // SAFETY: a running task has a carrier.
        let guard = unsafe { task.carrier.get().as_ref() }.map_or(0, |carrier| carrier.guard());
        if is_fault
            && [libc::SIGSEGV, libc::SIGBUS].contains(&signal)
            && (guard..guard + crate::stack::GUARD).contains(&address)
        {
            report(task, End::Overflow);
            // SAFETY: ends the program.
            unsafe { libc::abort() };
        }
        // An earlier handler may repair the fault. Then the report must not repeat.
        static REPORTED: AtomicBool = AtomicBool::new(false);
        if (is_fault || is_sent_by_us) && !REPORTED.swap(true, Ordering::SeqCst) {
            let known = SIGNALS.iter().find(|(known, _)| *known == signal);
            report(task, End::Signal(known.map_or("a signal", |(_, name)| name)));
        }
    }
    // SAFETY: calls the earlier handler as the kernel would have called it.
    unsafe {
        match before(signal) {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            }
            Some(before) => {
                // A fault repeats, and reaches the earlier handler. A sent signal is sent again,
                // and arrives when this handler has returned.
                libc::sigaction(signal, &before, std::ptr::null_mut());
                if !is_fault {
                    libc::raise(signal);
                }
            }
            None => libc::abort(),
        }
    }
}

/// Name of this process in the report.
static PROCESS: OnceLock<Box<str>> = OnceLock::new();

/// Names this process in the lines that report crashes and exits of tasks, for programs of several
/// processes that write to one place. The first name counts.
pub fn name_process(name: &str) {
    // A second name is ignored.
    let _ = PROCESS.set(name.into());
}

/// Largest number of characters of a name in the report.
const NAME_MAX: usize = 64;
/// Largest length of the report in bytes. The stack for signals is small.
const LINE_MAX: usize = 768;

/// Cause of the end of the program.
enum End {
    Overflow,
    Signal(&'static str),
    Exit,
}

/// Writes one line about the end of the program, without an allocation.
fn report(task: &Header, end: End) {
    use std::fmt::Write;
    fn name(line: &mut Line, name: &str) {
        for char in name.chars().take(NAME_MAX) {
            let _ = line.write_char(char);
        }
    }
    let mut line = Line { text: [0; LINE_MAX], length: 0 };
    let _ = line.write_str("corebeat-lpel: ");
    if let Some(process) = PROCESS.get() {
        name(&mut line, process);
        let _ = line.write_str(": ");
    }
    let _ = write!(line, "task {}", task.id);
    if let Some(its) = task.name.as_deref() {
        let _ = line.write_str(" '");
        name(&mut line, its);
        let _ = line.write_char('\'');
    }
    // SAFETY: set by a call of `doing` that the task is in.
    if let Some(doing) = unsafe { task.doing.get().as_ref() } {
        let _ = line.write_str(", in ");
        name(&mut line, doing);
        let _ = line.write_char(',');
    }
    let _ = match end {
        End::Signal(signal) => writeln!(line, " crashed: {signal}"),
        End::Exit => writeln!(
            line,
            " ended the program by exit, and all results of other tasks are lost: return instead"
        ),
        End::Overflow => writeln!(
            line,
            " has overflowed its stack of {} bytes: set a larger one with {}",
            task.stack_size,
            current::worker().map_or(STACK_OPTION, |worker| worker.inner().stack_option)
        ),
    };
    // SAFETY: the line is valid for its length.
    unsafe { libc::write(libc::STDERR_FILENO, line.text.as_ptr().cast(), line.length) };
}

/// Default name of the option that enlarges stacks.
pub(crate) const STACK_OPTION: &str = "stack_size";

struct Line {
    text: [u8; LINE_MAX],
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
