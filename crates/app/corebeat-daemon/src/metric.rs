//! A page for Prometheus: what the daemon does, and how the groups are, as text over HTTP.

use crate::Error;
use crate::limit::{
    ACCEPTED_AT_ONCE, DOOR_REST_NS, GROUPS_SHOWN_MAX, REQUEST_BYTES_MAX, SCRAPER_PATIENCE_NS, SCRAPERS_MAX,
};
use crate::socket::{Door, Scope};
use corebeat_heartbeat::{GroupInfo, Role};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fmt::{Display, Write as _};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Where the page is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket, which only the daemon's user and root may connect to. All groups are shown.
    Unix(PathBuf),
    /// A port of 127.0.0.1, to which every user of the host can connect: groups that others may not look at are not shown.
    Port(u16),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let port = text.strip_prefix("127.0.0.1:").unwrap_or(text);
        match (text.strip_prefix("unix:"), port.parse()) {
            (Some(path), _) if path.starts_with('/') => Ok(Place::Unix(path.into())),
            // The system would choose one, and nobody would know which.
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

/// What the daemon counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) clients: usize,
    pub(crate) programs: usize,
    pub(crate) claims: usize,
    pub(crate) steering: bool,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) connections: u64,
    pub(crate) turned_away: u64,
    pub(crate) dropped: u64,
    pub(crate) turns: u64,
    pub(crate) falls: u64,
    pub(crate) actions_done: u64,
    pub(crate) actions_failed: u64,
}

/// The page's text. Groups that others may not look at are on it only for `all`.
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
    one("programs", gauge, "Programs that are watched.", &counts.programs);
    one("claims", gauge, "Claims of CPUs.", &counts.claims);
    let steering = "Whether the daemon acts; 0 while it cannot keep up, or where it can do nothing.";
    one("steering", gauge, steering, &u8::from(counts.steering));
    one("calls_answered_total", counter, "Calls that were answered.", &counts.answered);
    one("calls_refused_total", counter, "Calls that were refused.", &counts.refused);
    one("connections_total", counter, "Connections that were taken in.", &counts.connections);
    one("connections_refused_total", counter, "Connections beyond a limit.", &counts.turned_away);
    one("connections_dropped_total", counter, "Connections given up for what came.", &counts.dropped);
    one("turns_total", counter, "Observations of the host.", &counts.turns);
    one("falls_total", counter, "Times that the daemon fell behind and took all back.", &counts.falls);
    one("actions_done_total", counter, "Actions that were carried out.", &counts.actions_done);
    one("actions_failed_total", counter, "Actions that were not possible.", &counts.actions_failed);
    one("cpu_seconds_total", counter, "CPU time of the daemon.", &own_cpu_s());
    let may_see = |g: &GroupInfo| all || g.mode.lets_others(Role::Consumer);
    let groups: Vec<GroupInfo> = groups.filter(may_see).take(GROUPS_SHOWN_MAX).collect();
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&GroupInfo) -> Option<String>| {
        let _ = writeln!(page, "# HELP corebeat_group_{name} {help}\n# TYPE corebeat_group_{name} {kind}");
        for group in &groups {
            if let Some(value) = value(group) {
                let (owner, number) = (group.id.owner, group.id.number);
                let _ =
                    writeln!(page, "corebeat_group_{name}{{owner=\"{owner}\",group=\"{number}\"}} {value}");
            }
        }
    };
    let rate = |rate: Option<f64>| rate.map(|r| r.to_string());
    each("beats_total", counter, "Beats.", &|g| Some(g.status.beats.to_string()));
    each("members", gauge, "Tasks that beat.", &|g| Some(g.status.members.to_string()));
    each("rate", gauge, "Beats a second over the window.", &|g| rate(Some(g.status.window_rate)));
    each("rate_min", gauge, "Beats a second that the goal asks for.", &|g| rate(g.status.goal.rate_min));
    each("rate_max", gauge, "Beats a second that the goal allows.", &|g| rate(g.status.goal.rate_max));
    page
}

fn own_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[derive(Debug)]
enum Listener {
    Unix(Door),
    Tcp(TcpListener),
}

/// The page, and those who are reading it.
#[derive(Debug)]
pub(crate) struct Page {
    listener: Listener,
    scrapers: Vec<Scraper>,
    /// Nobody is taken in until then, because descriptors are used up.
    rests_until_ns: u64,
}

/// One who reads the page.
#[derive(Debug)]
struct Scraper {
    stream: OwnedFd,
    asked: Vec<u8>,
    /// What is left to send; `None` before it has asked.
    answer: Option<Vec<u8>>,
    since_ns: u64,
}

impl Page {
    /// Offers the page.
    pub(crate) fn open(place: &Place) -> Result<Page, Error> {
        let failed = |source| Error::Metrics { place: place.to_string(), source };
        let listener = listen(place).map_err(failed)?;
        Ok(Page { listener, scrapers: Vec::new(), rests_until_ns: 0 })
    }

    /// Whether all groups may be shown.
    pub(crate) fn shows_all(&self) -> bool {
        matches!(self.listener, Listener::Unix(_))
    }

    /// The listening socket, unless it rests, and each reader with whether it is written to.
    pub(crate) fn sockets(&self, now_ns: u64) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listener = match &self.listener {
            Listener::Unix(door) => door.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let scrapers = self.scrapers.iter().map(|s| (s.stream.as_fd(), s.answer.is_some()));
        let listener = Some((listener, false)).filter(|_| now_ns >= self.rests_until_ns);
        listener.into_iter().chain(scrapers)
    }

    /// When the first reader's time is over, or the listener's rest.
    pub(crate) fn wake_at_ns(&self, now_ns: u64) -> Option<u64> {
        let rest_ns = Some(self.rests_until_ns).filter(|at| *at > now_ns);
        self.scrapers.iter().map(|s| s.since_ns + SCRAPER_PATIENCE_NS).chain(rest_ns).min()
    }

    /// Looks at everybody once. `text` is asked for where somebody wants the page.
    pub(crate) fn look(&mut self, now_ns: u64, text: &mut dyn FnMut() -> String) {
        if now_ns >= self.rests_until_ns {
            self.take_in(now_ns);
        }
        self.scrapers.retain_mut(|s| now_ns < s.since_ns + SCRAPER_PATIENCE_NS && s.look(text));
    }

    fn take_in(&mut self, now_ns: u64) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.accept() {
                // Beyond the limit it is closed again.
                Ok(Some(_)) if self.scrapers.len() >= SCRAPERS_MAX => {}
                Ok(Some(stream)) => {
                    self.scrapers.push(Scraper { stream, asked: Vec::new(), answer: None, since_ns: now_ns });
                }
                Ok(None) => return,
                Err(_) => {
                    self.rests_until_ns = now_ns + DOOR_REST_NS;
                    return;
                }
            }
        }
    }

    /// Takes in one who waits. `None` if nobody does.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let listener = match &self.listener {
            Listener::Unix(door) => return door.accept(),
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
        Place::Unix(path) => Door::open(path, Scope::User).map(Listener::Unix),
    }
}

impl Scraper {
    /// Goes on as far as possible. Whether there is more to do.
    fn look(&mut self, text: &mut dyn FnMut() -> String) -> bool {
        while self.answer.is_none() {
            let mut bytes = [0; 1024];
            match retry_on_intr(|| recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT)) {
                Ok((0, _)) => return false,
                Ok((count, _)) => self.asked.extend_from_slice(&bytes[..count]),
                Err(e) => return e == Errno::AGAIN,
            }
            self.answer = answer(&self.asked, text);
        }
        let left = self.answer.get_or_insert_default();
        while !left.is_empty() {
            match retry_on_intr(|| send(&self.stream, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)) {
                Ok(count) => drop(left.drain(..count)),
                Err(e) => return e == Errno::AGAIN,
            }
        }
        false
    }
}

/// What is answered to such a request, or `None` while it is not whole.
fn answer(asked: &[u8], text: &mut dyn FnMut() -> String) -> Option<Vec<u8>> {
    let is_whole = asked.windows(4).any(|w| w == b"\r\n\r\n") || asked.windows(2).any(|w| w == b"\n\n");
    if !is_whole && asked.len() <= REQUEST_BYTES_MAX {
        return None;
    }
    let line = asked.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|b| *b == b' ');
    let (status, body) = match (is_whole, words.next(), words.next()) {
        (false, ..) => ("431 Request Header Fields Too Large", "too long\n".into()),
        (_, Some(b"GET"), Some(b"/metrics")) => ("200 OK", text()),
        (_, Some(b"GET"), _) => ("404 Not Found", "there is /metrics\n".into()),
        _ => ("405 Method Not Allowed", "there is GET\n".into()),
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

    fn asked(request: &str) -> Option<String> {
        answer(request.as_bytes(), &mut || "page\n".into()).map(|a| String::from_utf8(a).unwrap())
    }

    #[test]
    fn answer_is_the_page_or_says_what_there_is() {
        assert!(asked("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap().ends_with("\r\n\r\npage\n"));
        assert!(asked("GET / HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 404 "));
        assert!(asked("POST /metrics HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert!(asked("\n\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert_eq!(asked("GET /metrics HTTP/1.1\r\n"), None);
        assert!(asked(&"a".repeat(REQUEST_BYTES_MAX + 1)).unwrap().starts_with("HTTP/1.1 431 "));
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
