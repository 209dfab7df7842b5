//! A socket through which other processes list and switch the probes of a process.
//!
//! The Unix socket has an abstract name that contains the process ID; the kernel removes it with
//! the process. A client sends one line and receives lines:
//!
//! ```text
//!   list PATTERN  ->  [on | off | set_by_rule] NAME FILE:LINE     for each match, then ok N
//!   on PATTERN    ->  ok N                                 N probes match
//!   off PATTERN   ->  ok N
//!   other input   ->  error WHY
//! ```
//!
//! Any process can bind such a name, and any process can connect to it. Both sides therefore obtain
//! the identity of the peer from the kernel. The process serves its own user and root; the client
//! verifies the process ID of the server.

use crate::error::Error;
use crate::pattern::{PATTERN_BYTES_MAX, Pattern};
use crate::probe::{PROBES_MAX, probes, switch};
use corebeat_sync::descriptor::above_standard;
use corebeat_sync::fork::{KeptOut, Uninherited};
use corebeat_sync::quiet;
use rustix::net::sockopt::socket_peercred;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time that each side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Limits on the bytes of a request, and of a line of the response.
const REQUEST_BYTES_MAX: u64 = PATTERN_BYTES_MAX as u64 + 16;
const LINE_BYTES_MAX: u64 = 8 << 10;

/// Accepts requests to list and switch the probes of this process, which
/// `corebeat probe on|off|list PID PATTERN` sends. A thread listens until this value is dropped.
///
/// A child of fork does not have the socket: it opens its own.
#[derive(Debug)]
pub struct ControlSocket {
    stopped: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<Uninherited<JoinHandle<()>>>,
}

impl ControlSocket {
    /// Binds the socket and starts the thread.
    ///
    /// # Errors
    ///
    /// The process has a control socket already, another process has bound its name, or the socket
    /// or its thread cannot be created.
    pub fn open() -> Result<ControlSocket, Error> {
        let address = address(std::process::id()).map_err(Error::ControlSocket)?;
        let bind = || Ok(File::from(OwnedFd::from(UnixListener::bind_addr(&address)?)));
        let (kept, listener) = KeptOut::file(bind).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => name_in_use(&address),
            _ => Error::ControlSocket(e),
        })?;
        let listener = UnixListener::from(OwnedFd::from(listener));
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        let thread = quiet::spawn("probe control", move || {
            // Dropped before the socket.
            let (listener, _kept) = (listener, kept);
            for client in listener.incoming() {
                // Acquire: pairs with Release in `drop`.
                if is_stopped.load(Ordering::Acquire) {
                    break;
                }
                match client.and_then(|client| above_standard(client.into())) {
                    // A client that disconnects early is not an error of this process.
                    Ok(client) => drop(serve(client.into())),
                    // For example too many open files, which may last.
                    Err(_) => std::thread::sleep(RETRY_DELAY),
                }
            }
        });
        let thread = thread.map_err(|source| Error::Thread { of: "the control socket", source })?;
        Ok(ControlSocket { stopped, address, thread: Some(Uninherited::new(thread)) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().and_then(Uninherited::into_inner) else { return };
        // Release: pairs with Acquire in `open`.
        self.stopped.store(true, Ordering::Release);
        if UnixStream::connect_addr(&self.address).is_ok() {
            let _ = thread.join();
        }
    }
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("corebeat-probe-{pid}"))
}

/// The error for a name that is bound already.
fn name_in_use(address: &SocketAddr) -> Error {
    let who =
        UnixStream::connect_addr(address).and_then(|socket| Ok(socket_peercred(&socket)?.pid));
    match who.map(|pid| pid.as_raw_nonzero().get() as u32) {
        Ok(pid) if pid != std::process::id() => Error::NameTaken { pid },
        _ => Error::ControlSocketOpen,
    }
}

/// Reads from a socket until a time, whatever signals the thread receives, and however slowly the
/// peer writes.
struct TimedReader<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl Read for TimedReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(bytes)
    }
}

fn serve(client: UnixStream) -> io::Result<()> {
    let timed = TimedReader { socket: &client, until: Instant::now() + TIMEOUT };
    client.set_write_timeout(Some(TIMEOUT))?;
    let mut answer = BufWriter::new(&client);
    let user = socket_peercred(&client)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        writeln!(answer, "error only its user and root may control the probes of this process")?;
        return answer.flush();
    }
    let mut request = String::new();
    BufReader::new(timed.take(REQUEST_BYTES_MAX)).read_line(&mut request)?;
    match answer_to(request.trim_end_matches('\n'), &mut answer)? {
        Ok(fit) => writeln!(answer, "ok {fit}")?,
        Err(why) => writeln!(answer, "error {why}")?,
    }
    answer.flush()
}

/// Executes a request. Returns the number of matching probes, or the reason for a refusal.
fn answer_to(request: &str, answer: &mut impl Write) -> io::Result<Result<usize, String>> {
    let Some((verb, pattern)) = request.split_once(' ') else {
        return Ok(Err("a request is list, on or off, followed by a pattern".into()));
    };
    Ok(match verb {
        "on" => switch(pattern, true).map_err(|e| e.to_string()),
        "off" => switch(pattern, false).map_err(|e| e.to_string()),
        "list" => match Pattern::new(pattern) {
            Ok(pattern) => {
                let mut listed: Vec<_> =
                    probes().filter(|probe| pattern.matches(probe.name())).collect();
                listed.sort_by_key(|probe| (probe.name(), probe.file(), probe.line()));
                for probe in &listed {
                    let state = match (probe.is_on(), probe.is_wanted()) {
                        (true, _) => "on",
                        (false, true) => "set_by_rule",
                        (false, false) => "off",
                    };
                    writeln!(answer, "{state} {} {}:{}", probe.name(), probe.file(), probe.line())?;
                }
                Ok(listed.len())
            }
            Err(e) => Err(e.to_string()),
        },
        _ => Err(format!("unknown request {verb:?}: use list, on or off")),
    })
}

/// Sends a request to the [`ControlSocket`] of a process: `list`, `on` or `off`, for the probes
/// that match a pattern. Returns the lines of the response and the number of matches. Each line
/// contains `on`, `off` or `set_by_rule` (wanted, but switched off by a [`Rule`](crate::Rule)), a
/// name and a position.
///
/// # Errors
///
/// The pattern is invalid, the process has no control socket or does not answer, or another process
/// has bound the name.
pub fn control(pid: u32, verb: &str, pattern: &str) -> Result<(Vec<String>, usize), Error> {
    Pattern::new(pattern)?;
    let failed = |source| Error::Communication { pid, source };
    let refused = |why: &str| Error::Refused { pid, why: why.into() };
    let socket = match UnixStream::connect_addr(&address(pid).map_err(failed)?) {
        Ok(socket) => socket,
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            let exists = std::path::Path::new(&format!("/proc/{pid}")).exists();
            return Err(if exists {
                Error::NoControlSocket { pid }
            } else {
                Error::NoProcess { pid }
            });
        }
        Err(e) => return Err(failed(e)),
    };
    let server = socket_peercred(&socket).map_err(|e| failed(e.into()))?;
    if server.pid.as_raw_nonzero().get() as u32 != pid {
        return Err(Error::WrongProcess { pid });
    }
    let user = rustix::process::geteuid();
    if !user.is_root() && server.uid != user {
        return Err(refused("only its user and root may control its probes"));
    }
    let failed = |source: io::Error| match source.kind() {
        // A read that exceeded the time limit.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            refused("no answer within 2 s: check whether the process is stopped")
        }
        _ => failed(source),
    };
    socket.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    (&socket).write_all(format!("{verb} {pattern}\n").as_bytes()).map_err(failed)?;
    let until = Instant::now() + TIMEOUT;
    let mut answer = BufReader::new(TimedReader { socket: &socket, until });
    let mut lines = Vec::new();
    // One line more than there are probes is the last one.
    for _ in 0..=PROBES_MAX {
        let mut line = String::new();
        (&mut answer).take(LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        let Some(line) = line.strip_suffix('\n') else { break };
        if let Some(fit) = line.strip_prefix("ok ") {
            let fit = fit.parse().map_err(|_| refused("its response has no valid count"))?;
            return Ok((lines, fit));
        }
        if let Some(why) = line.strip_prefix("error ") {
            return Err(refused(why));
        }
        lines.push(line.to_owned());
    }
    Err(refused("its response is too long"))
}
