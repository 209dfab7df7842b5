//! The door through which other processes list and switch a process' probes.
//!
//! A Unix socket with an abstract name that has the process' number, which is gone with the process. Who asks says one line, and gets lines:
//!
//! ```text
//!   list PATTERN  ->  [on | off | thin] NAME FILE:LINE     for each that fits, then ok N
//!   on PATTERN    ->  ok N                                 N fit
//!   off PATTERN   ->  ok N
//!   what else     ->  error WHY
//! ```
//!
//! Anybody can take such a name, and anybody can ask: so both sides have the kernel say who the other is. The process
//! answers its own user and root; who asks wants the process of that number.

use crate::error::Error;
use crate::pattern::{PATTERN_BYTES_MAX, Pattern};
use crate::probe::{PROBES_MAX, probes, switch};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long each side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it rests where nobody can be let in.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a question, and of a line of an answer.
const QUESTION_BYTES_MAX: u64 = PATTERN_BYTES_MAX as u64 + 16;
const LINE_BYTES_MAX: u64 = 8 << 10;

/// An open door to this process' probes: `corebeat probe on|off|list PID PATTERN` goes through it. A small thread listens until
/// this is dropped.
#[derive(Debug)]
pub struct Door {
    over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// There is one already, another process has taken its name, or no thread can be started.
    pub fn open() -> io::Result<Door> {
        let address = address(std::process::id())?;
        let listener = UnixListener::bind_addr(&address).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => io::Error::new(e.kind(), taken(&address)),
            _ => e,
        })?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::Builder::new().name("probe door".into()).spawn(move || {
            for client in listener.incoming() {
                // Acquire: with Release in `drop`; no more than the sign is behind it, but here nothing is in a hurry.
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                match client {
                    // Who goes away before it has its answer is none of ours.
                    Ok(client) => drop(serve(client)),
                    // Such as too many open files, which lasts.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(Door { over, address, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Release: with Acquire in `open`.
        self.over.store(true, Ordering::Release);
        let woken = UnixStream::connect_addr(&self.address).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("corebeat-probe-{pid}"))
}

/// By whom.
fn taken(address: &SocketAddr) -> String {
    let who = UnixStream::connect_addr(address).and_then(|socket| Ok(socket_peercred(&socket)?.pid));
    match who.map(|pid| pid.as_raw_nonzero().get() as u32) {
        Ok(pid) if pid != std::process::id() => {
            format!("process {pid} has taken the name of this one's door: end that one first")
        }
        _ => "this process has a door already: keep that one".into(),
    }
}

fn serve(client: UnixStream) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut answer = BufWriter::new(&client);
    let asks = socket_peercred(&client)?.uid;
    if !asks.is_root() && asks != rustix::process::geteuid() {
        writeln!(answer, "error its probes are for its user and root alone")?;
        return answer.flush();
    }
    let mut question = String::new();
    BufReader::new((&client).take(QUESTION_BYTES_MAX)).read_line(&mut question)?;
    match answer_to(question.trim_end_matches('\n'), &mut answer)? {
        Ok(fit) => writeln!(answer, "ok {fit}")?,
        Err(why) => writeln!(answer, "error {why}")?,
    }
    answer.flush()
}

/// Does what a line asks for. How many probes it was about, or what is wrong with it.
fn answer_to(question: &str, answer: &mut impl Write) -> io::Result<Result<usize, String>> {
    let Some((verb, pattern)) = question.split_once(' ') else {
        return Ok(Err("a question is list, on or off, and a pattern".into()));
    };
    Ok(match verb {
        "on" => switch(pattern, true).map_err(|e| e.to_string()),
        "off" => switch(pattern, false).map_err(|e| e.to_string()),
        "list" => match Pattern::new(pattern) {
            Ok(pattern) => {
                let mut listed: Vec<_> = probes().filter(|probe| pattern.fits(probe.name())).collect();
                listed.sort_by_key(|probe| (probe.name(), probe.file(), probe.line()));
                for probe in &listed {
                    let state = match (probe.is_on(), probe.is_wanted()) {
                        (true, _) => "on",
                        (false, true) => "thin",
                        (false, false) => "off",
                    };
                    writeln!(answer, "{state} {} {}:{}", probe.name(), probe.file(), probe.line())?;
                }
                Ok(listed.len())
            }
            Err(e) => Err(e.to_string()),
        },
        _ => Err(format!("it knows list, on and off, not {verb:?}")),
    })
}

/// Asks a process through its [`Door`]: `list`, `on` or `off`, for the probes that fit a pattern. The lines it says of them, each
/// `on`, `off` or `thin` (on, but switched off by a [`Rule`](crate::Rule)), name, and place; and how many fit.
///
/// # Errors
///
/// The pattern is of no use, the process has no door or does not answer, or somebody else does.
pub fn ask(pid: u32, verb: &str, pattern: &str) -> Result<(Vec<String>, usize), Error> {
    Pattern::new(pattern)?;
    let failed = |source| Error::Ask { pid, source };
    let refused = |why: &str| Error::Refused { pid, why: why.into() };
    let socket = match UnixStream::connect_addr(&address(pid).map_err(failed)?) {
        Ok(socket) => socket,
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            return Err(if is_there { Error::NoDoor { pid } } else { Error::NoProcess { pid } });
        }
        Err(e) => return Err(failed(e)),
    };
    let answers = socket_peercred(&socket).map_err(|e| failed(e.into()))?;
    if answers.pid.as_raw_nonzero().get() as u32 != pid {
        return Err(Error::Impostor { pid });
    }
    let me = rustix::process::geteuid();
    if !me.is_root() && answers.uid != me {
        return Err(refused("its probes are for its own user and root"));
    }
    let failed = |source: io::Error| match source.kind() {
        // Of a read that has waited long enough.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            refused("it does not answer; has somebody stopped it?")
        }
        _ => failed(source),
    };
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    (&socket).write_all(format!("{verb} {pattern}\n").as_bytes()).map_err(failed)?;
    let mut answer = BufReader::new(&socket);
    let mut lines = Vec::new();
    // One more line than there are probes ends it.
    for _ in 0..=PROBES_MAX {
        let mut line = String::new();
        (&mut answer).take(LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        let Some(line) = line.strip_suffix('\n') else { break };
        if let Some(fit) = line.strip_prefix("ok ") {
            let fit = fit.parse().map_err(|_| refused("it says something else than how many"))?;
            return Ok((lines, fit));
        }
        if let Some(why) = line.strip_prefix("error ") {
            return Err(refused(why));
        }
        lines.push(line.to_owned());
    }
    Err(refused("its answer has no end"))
}
