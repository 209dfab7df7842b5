//! A page for Prometheus: counters of the daemon and rates of the groups, as text over HTTP.

use crate::Error;
use crate::limit::{
    ACCEPTED_AT_ONCE, GROUPS_SHOWN_MAX, LISTENER_PAUSE_NS, READER_PATIENCE_NS, READERS_MAX,
    REQUEST_BYTES_MAX,
};
use crate::socket::{LockedSocket, Scope};
use corebeat_heartbeat::{GroupInfo, Role};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fmt::{Display, Write as _};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Place of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket for the daemon's user and root. The page shows all groups.
    Unix(PathBuf),
    /// A port of 127.0.0.1, to which every user of the host can connect. The page leaves out groups
    /// that other users may not list.
    Port(u16),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let port = text.strip_prefix("127.0.0.1:").unwrap_or(text);
        match (text.strip_prefix("unix:"), port.parse()) {
            (Some(path), _) if path.starts_with('/') => Ok(Place::Unix(path.into())),
            // The system would choose an unknown port.
            (None, Ok(port)) if port != 0 => Ok(Place::Port(port)),
            _ => Err("write unix:/PATH, or a port of 127.0.0.1 such as 9477".into()),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Port(port) => write!(f, "127.0.0.1:{port}"),
        }
    }
}

/// Counters of the daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) clients: usize,
    pub(crate) programs: usize,
    pub(crate) claims: usize,
    pub(crate) steering: bool,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) connections: u64,
    pub(crate) rejected: u64,
    pub(crate) dropped: u64,
    pub(crate) cycles: u64,
    pub(crate) late: u64,
    pub(crate) actions_done: u64,
    pub(crate) actions_failed: u64,
}

/// Text of the page. Groups that other users may not list are included only if `all` is set.
pub(crate) fn text(counts: &Counts, groups: impl Iterator<Item = GroupInfo>, all: bool) -> String {
    let mut page = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: &dyn Display| {
        let _ = writeln!(
            page,
            "# HELP corebeat_{name} {help}\n# TYPE corebeat_{name} {kind}\ncorebeat_{name} {value}"
        );
    };
    let (gauge, counter) = ("gauge", "counter");
    one("clients", gauge, "Connections.", &counts.clients);
    one("programs", gauge, "Observed programs.", &counts.programs);
    one("claims", gauge, "Claims of CPUs.", &counts.claims);
    let steering = "Whether the daemon acts; 0 while it is late, or if no action is permitted.";
    one("steering", gauge, steering, &u8::from(counts.steering));
    one("calls_answered_total", counter, "Answered calls.", &counts.answered);
    one("calls_refused_total", counter, "Refused calls.", &counts.refused);
    one("connections_total", counter, "Accepted connections.", &counts.connections);
    one("connections_refused_total", counter, "Refused connections.", &counts.rejected);
    one(
        "connections_dropped_total",
        counter,
        "Connections closed because of invalid input.",
        &counts.dropped,
    );
    one("cycles_total", counter, "Observations of the host.", &counts.cycles);
    one(
        "late_total",
        counter,
        "Times that the daemon was late and undid all changes.",
        &counts.late,
    );
    one("actions_done_total", counter, "Applied actions.", &counts.actions_done);
    one("actions_failed_total", counter, "Refused actions.", &counts.actions_failed);
    one("cpu_seconds_total", counter, "CPU time of the daemon.", &own_cpu_s());
    let may_see = |g: &GroupInfo| all || g.mode.permits_others(Role::Consumer);
    let groups: Vec<GroupInfo> = groups.filter(may_see).take(GROUPS_SHOWN_MAX).collect();
    let mut each =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&GroupInfo) -> Option<String>| {
            let _ = writeln!(
                page,
                "# HELP corebeat_group_{name} {help}\n# TYPE corebeat_group_{name} {kind}"
            );
            for group in &groups {
                if let Some(value) = value(group) {
                    let (owner, number) = (group.id.owner, group.id.number);
                    let _ = writeln!(
                        page,
                        "corebeat_group_{name}{{owner=\"{owner}\",group=\"{number}\"}} {value}"
                    );
                }
            }
        };
    let rate = |rate: Option<f64>| rate.map(|r| r.to_string());
    each("beats_total", counter, "Heartbeats.", &|g| Some(g.status.beats.to_string()));
    each("members", gauge, "Tasks that emit heartbeats.", &|g| Some(g.status.members.to_string()));
    each("rate", gauge, "Heartbeats per second over the window.", &|g| {
        rate(Some(g.status.window_rate))
    });
    each("rate_min", gauge, "Minimum rate of the goal, in heartbeats per second.", &|g| {
        rate(g.status.goal.rate_min)
    });
    each("rate_max", gauge, "Maximum rate of the goal, in heartbeats per second.", &|g| {
        rate(g.status.goal.rate_max)
    });
    page
}

fn own_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[derive(Debug)]
enum Listener {
    Unix(LockedSocket),
    Tcp(TcpListener),
}

/// The page and its readers, the oldest first.
#[derive(Debug)]
pub(crate) struct Page {
    listener: Listener,
    readers: Vec<Reader>,
    /// Time until which no reader is accepted, because descriptors were exhausted.
    paused_until_ns: u64,
}

/// A reader of the page.
#[derive(Debug)]
struct Reader {
    stream: OwnedFd,
    request: Vec<u8>,
    /// Remaining text; `None` before the request is complete.
    answer: Option<Vec<u8>>,
    since_ns: u64,
}

impl Page {
    /// Starts to serve the page.
    pub(crate) fn open(place: &Place) -> Result<Page, Error> {
        let failed = |source| Error::Metrics { place: place.to_string(), source };
        let listener = listen(place).map_err(failed)?;
        Ok(Page { listener, readers: Vec::new(), paused_until_ns: 0 })
    }

    /// Whether the page shows all groups.
    pub(crate) fn shows_all(&self) -> bool {
        matches!(self.listener, Listener::Unix(_))
    }

    /// The listening socket unless it pauses, and each reader with whether it has an answer.
    pub(crate) fn sockets(&self, now_ns: u64) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listener = match &self.listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let readers = self.readers.iter().map(|s| (s.stream.as_fd(), s.answer.is_some()));
        let listener = Some((listener, false)).filter(|_| now_ns >= self.paused_until_ns);
        listener.into_iter().chain(readers)
    }

    /// End of the first reader's time limit or of the listener's pause.
    pub(crate) fn wake_at_ns(&self, now_ns: u64) -> Option<u64> {
        let pause_ns = Some(self.paused_until_ns).filter(|at| *at > now_ns);
        self.readers.iter().map(|s| s.since_ns + READER_PATIENCE_NS).chain(pause_ns).min()
    }

    /// Serves every reader once. Calls `text` for a reader that requests the page.
    pub(crate) fn serve(&mut self, now_ns: u64, text: &mut dyn FnMut() -> String) {
        self.readers.retain_mut(|r| now_ns < r.since_ns + READER_PATIENCE_NS && r.serve(text));
        if now_ns >= self.paused_until_ns {
            self.accept_readers(now_ns, text);
        }
    }

    /// Accepts waiting readers, and answers those whose request has arrived. Beyond the limit, a
    /// new reader replaces the oldest one: idle connections of one user must not keep others from
    /// the page.
    fn accept_readers(&mut self, now_ns: u64, text: &mut dyn FnMut() -> String) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.accept() {
                Ok(Some(stream)) => {
                    let (request, answer) = (Vec::new(), None);
                    let mut reader = Reader { stream, request, answer, since_ns: now_ns };
                    if reader.serve(text) {
                        self.readers.push(reader);
                        self.readers.drain(..self.readers.len().saturating_sub(READERS_MAX));
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    self.paused_until_ns = now_ns + LISTENER_PAUSE_NS;
                    return;
                }
            }
        }
    }

    /// Accepts a waiting reader, if there is one.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let listener = match &self.listener {
            Listener::Unix(listener) => return listener.accept(),
            Listener::Tcp(listener) => listener,
        };
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream.into())),
            Err(e) if matches!(e.kind(), ConnectionAborted | Interrupted | WouldBlock) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn listen(place: &Place) -> io::Result<Listener> {
    match place {
        Place::Port(port) => {
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, *port)))?;
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(listener))
        }
        Place::Unix(path) => LockedSocket::open(path, Scope::User).map(Listener::Unix),
    }
}

impl Reader {
    /// Reads and writes as far as possible. Returns whether work remains.
    fn serve(&mut self, text: &mut dyn FnMut() -> String) -> bool {
        while self.answer.is_none() {
            let mut bytes = [0; 1024];
            match retry_on_intr(|| recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT)) {
                Ok((0, _)) => return false,
                Ok((count, _)) => self.request.extend_from_slice(&bytes[..count]),
                Err(e) => return e == Errno::AGAIN,
            }
            self.answer = answer(&self.request, text);
        }
        let left = self.answer.get_or_insert_default();
        while !left.is_empty() {
            match retry_on_intr(|| {
                send(&self.stream, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }) {
                Ok(count) => drop(left.drain(..count)),
                Err(e) => return e == Errno::AGAIN,
            }
        }
        false
    }
}

/// Answer to a request; `None` while the request is incomplete.
fn answer(request: &[u8], text: &mut dyn FnMut() -> String) -> Option<Vec<u8>> {
    let is_whole =
        request.windows(4).any(|w| w == b"\r\n\r\n") || request.windows(2).any(|w| w == b"\n\n");
    if !is_whole && request.len() <= REQUEST_BYTES_MAX {
        return None;
    }
    let line = request.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|b| *b == b' ');
    let (status, body) = match (is_whole, words.next(), words.next()) {
        (false, ..) => ("431 Request Header Fields Too Large", "the request is too long\n".into()),
        (_, Some(b"GET"), Some(b"/metrics")) => ("200 OK", text()),
        (_, Some(b"GET"), _) => ("404 Not Found", "the only page is /metrics\n".into()),
        _ => ("405 Method Not Allowed", "the only method is GET\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Some((head + &body).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(request: &str) -> Option<String> {
        answer(request.as_bytes(), &mut || "page\n".into()).map(|a| String::from_utf8(a).unwrap())
    }

    #[test]
    fn answer_is_the_page_or_says_what_there_is() {
        assert!(
            answered("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap()
                .ends_with("\r\n\r\npage\n")
        );
        assert!(answered("GET / HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 404 "));
        assert!(answered("POST /metrics HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert!(answered("\n\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert_eq!(answered("GET /metrics HTTP/1.1\r\n"), None);
        assert!(answered(&"a".repeat(REQUEST_BYTES_MAX + 1)).unwrap().starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn place_is_read_or_explained() {
        assert_eq!("9477".parse(), Ok(Place::Port(9477)));
        assert_eq!("127.0.0.1:9477".parse(), Ok(Place::Port(9477)));
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        for bad in ["", "0", "unix:x", "0.0.0.0:9477", "99999", "localhost:9477", "[::1]:9477"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn text_has_a_type_for_every_name() {
        let page = text(&Counts::default(), std::iter::empty(), true);
        for line in page.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split([' ', '{']).next().unwrap();
            assert!(page.contains(&format!("# TYPE {name} ")), "{name}");
        }
        assert!(page.contains("\ncorebeat_steering 0\n"));
    }
}
