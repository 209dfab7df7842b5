//! A small HTTP server: GET and HEAD, one request on each connection, and server-sent events. The
//! metrics and the web page use it.

use crate::body::{Body, Coding};
use crate::limit::{
    ACCEPTED_AT_ONCE, ANSWER_PATIENCE_NS, LISTENER_PAUSE_NS, READER_PATIENCE_NS, READERS_MAX,
    REQUEST_BYTES_MAX, STREAMS_MAX,
};
use crate::socket::{LockedSocket, Scope};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fmt::{Display, Write as _};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Place of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket for the daemon's user and root.
    Unix(PathBuf),
    /// A port of an address of this host. Every user of the host can connect to it, and other hosts
    /// can unless the address is that of the loopback.
    Tcp(SocketAddr),
}

impl Place {
    /// Whether only processes of this host can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Place::Unix(_) => true,
            Place::Tcp(address) => address.ip().is_loopback(),
        }
    }
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let port = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let address = text.parse().map(port).or_else(|_| text.parse());
        match (text.strip_prefix("unix:"), address) {
            (Some(path), _) if path.starts_with('/') => Ok(Place::Unix(path.into())),
            // The system would choose an unknown port.
            (None, Ok(address)) if address.port() != 0 => Ok(Place::Tcp(address)),
            _ => Err("write unix:/PATH, a port of 127.0.0.1 such as 9477, or ADDRESS:PORT".into()),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Tcp(address) => address.fmt(f),
        }
    }
}

/// A request for a page.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Path of the page, as it was sent: nothing is decoded.
    pub(crate) path: &'a str,
    /// Text after the question mark; empty without one.
    pub(crate) query: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    is_head: bool,
}

/// An answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    /// Status code with its reason.
    pub(crate) status: &'static str,
    /// Headers other than those of the connection and of the length.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
    /// Coding of the body and of later events.
    pub(crate) coding: Coding,
    /// Whether the connection stays open for [`Server::publish`].
    pub(crate) is_stream: bool,
}

impl Response {
    /// An answer of plain text.
    pub(crate) fn text(status: &'static str, text: impl Into<String>) -> Response {
        let headers = vec![("Content-Type", "text/plain; charset=utf-8".into())];
        let (body, coding) = (Body::new(text), Coding::Plain);
        Response { status, headers, body, coding, is_stream: false }
    }

    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let body = match self.is_stream {
            true => self.body.begin(self.coding),
            false => self.body.whole(self.coding),
        };
        let mut head = format!("HTTP/1.1 {}\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if self.coding == Coding::Gzip {
            head += "Content-Encoding: gzip\r\n";
        }
        if !self.is_stream {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        [head.as_bytes(), b"\r\n", if is_head { &[] } else { &body[..] }].concat()
    }
}

impl<'a> Request<'a> {
    /// Parses a request. `None` while it is incomplete. The end of the request is searched from
    /// byte `from`, so that each byte of a request that arrives in parts is searched once.
    ///
    /// # Errors
    /// The answer to a request that the server does not accept.
    pub(crate) fn parse(bytes: &'a [u8], from: usize) -> Result<Option<Request<'a>>, Response> {
        let end = |mark: &[u8]| {
            let at = bytes[from..].windows(mark.len()).position(|w| w == mark)?;
            Some(from + at)
        };
        let Some(end) = end(b"\r\n\r\n").into_iter().chain(end(b"\n\n")).min() else {
            return match bytes.len() > REQUEST_BYTES_MAX {
                false => Ok(None),
                true => {
                    let status = "431 Request Header Fields Too Large";
                    Err(Response::text(status, "the request is too long\n"))
                }
            };
        };
        let bad = || Response::text("400 Bad Request", "the request is not HTTP/1.1\n");
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| bad())?;
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        if !version.starts_with("HTTP/1.") {
            return Err(bad());
        }
        if !["GET", "HEAD"].contains(&method) {
            let mut refusal =
                Response::text("405 Method Not Allowed", "the only methods are GET and HEAD\n");
            refusal.headers.push(("Allow", "GET, HEAD".into()));
            return Err(refusal);
        }
        let header = |line: &'a str| {
            let (name, value) = line.split_once(':')?;
            let is_name = !name.is_empty() && !name.contains([' ', '\t']);
            is_name.then_some((name, value.trim()))
        };
        let headers: Vec<_> = lines.map(header).collect::<Option<_>>().ok_or_else(bad)?;
        let hosts = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
        if hosts.count() > 1 {
            return Err(bad());
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(Some(Request { path, query, headers, is_head: method == "HEAD" }))
    }

    /// Value of the first parameter of this name in the query, as it was sent.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(n, value)| (n == name).then_some(value))
    }

    /// The preferred coding of the sender for an answer.
    pub(crate) fn coding(&self) -> Coding {
        let accepted = self.header("accept-encoding").unwrap_or_default();
        // A coding with a weight (`gzip;q=0`) is not used: browsers send none.
        match accepted.split(',').any(|coding| coding.trim() == "gzip") {
            true => Coding::Gzip,
            false => Coding::Plain,
        }
    }

    /// Value of the first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// Whether the request names its host by an address or as `localhost`. A page from another
    /// host cannot have such a name: it reaches this server only under its own name, after it has
    /// changed the address of that name (DNS rebinding). A request without a name is not that of a
    /// browser.
    pub(crate) fn has_local_name(&self) -> bool {
        let Some(host) = self.header("host") else { return true };
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |h| h.0);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        name.eq_ignore_ascii_case("localhost") || address.unwrap_or(name).parse::<IpAddr>().is_ok()
    }
}

#[derive(Debug)]
enum Listener {
    Unix(LockedSocket),
    Tcp(TcpListener),
}

/// A server and its connections, the oldest first.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Listener,
    connections: Vec<Connection>,
    /// Time until which no connection is accepted, because descriptors were exhausted.
    paused_until_ns: u64,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Received bytes of the request.
    request: Vec<u8>,
    /// Bytes that are sent, and the number of those that have been sent.
    output: Option<(Arc<[u8]>, usize)>,
    /// Whether the request is complete, and its answer is not ready.
    waits: bool,
    /// Whether the connection receives events.
    is_stream: bool,
    /// Coding of the events.
    coding: Coding,
    /// Whether events were left out, because the reader was slow.
    has_missed: bool,
    /// Time of the connection, at which the request was complete, or at which bytes were sent last.
    since_ns: u64,
}

/// Answers a request. `None` if the answer is not ready: each later [`Server::serve`] asks again.
pub(crate) type Answer<'a> = dyn FnMut(&Request<'_>) -> Option<Response> + 'a;

impl Server {
    /// Starts to listen.
    pub(crate) fn open(place: &Place) -> io::Result<Server> {
        let listener = match place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Place::Unix(path) => Listener::Unix(LockedSocket::open(path, Scope::User)?),
        };
        Ok(Server { listener, connections: Vec::new(), paused_until_ns: 0 })
    }

    /// Whether only the daemon's user and root can connect.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self.listener, Listener::Unix(_))
    }

    /// The listening socket unless it pauses, and each connection with whether it has output. A
    /// connection that waits for its answer has no event.
    pub(crate) fn sockets(&self, now_ns: u64) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listener = match &self.listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let connections = self.connections.iter().filter(|c| !c.waits);
        let connections = connections.map(|c| (c.socket.as_fd(), c.output.is_some()));
        let listener = Some((listener, false)).filter(|_| now_ns >= self.paused_until_ns);
        listener.into_iter().chain(connections)
    }

    /// End of the first connection's time limit or of the listener's pause.
    pub(crate) fn wake_at_ns(&self, now_ns: u64) -> Option<u64> {
        let pause_ns = Some(self.paused_until_ns).filter(|at| *at > now_ns);
        self.connections.iter().filter_map(Connection::deadline_ns).chain(pause_ns).min()
    }

    /// Serves every connection once, and accepts waiting ones.
    pub(crate) fn serve(&mut self, now_ns: u64, answer: &mut Answer) {
        self.connections.retain_mut(|c| {
            // A reader that waits for its answer for too long receives another one.
            let is_over = !c.waits && c.deadline_ns().is_some_and(|at| at <= now_ns);
            !is_over && c.serve(now_ns, answer)
        });
        if now_ns >= self.paused_until_ns {
            self.accept_waiting(now_ns, answer);
        }
        self.bound();
    }

    /// Accepts waiting connections, and answers those whose request has arrived.
    fn accept_waiting(&mut self, now_ns: u64, answer: &mut Answer) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.accept() {
                Ok(Some(socket)) => {
                    let mut connection = Connection {
                        socket,
                        request: Vec::new(),
                        output: None,
                        waits: false,
                        is_stream: false,
                        coding: Coding::Plain,
                        has_missed: false,
                        since_ns: now_ns,
                    };
                    if connection.serve(now_ns, answer) {
                        self.connections.push(connection);
                        self.bound();
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

    /// Closes the oldest connections beyond the limits: idle connections of one user must not keep
    /// others from the page.
    fn bound(&mut self) {
        for (is_stream, max) in [(false, READERS_MAX), (true, STREAMS_MAX)] {
            let count = self.connections.iter().filter(|c| c.is_stream == is_stream).count();
            let mut excess = count.saturating_sub(max);
            self.connections.retain(|c| {
                let is_closed = excess > 0 && c.is_stream == is_stream;
                excess -= usize::from(is_closed);
                !is_closed
            });
        }
    }

    /// Whether a connection receives events.
    pub(crate) fn has_streams(&self) -> bool {
        self.connections.iter().any(|c| c.is_stream)
    }

    /// Sends an event to all connections that have received the one before. The others are slow:
    /// they miss this one, and receive `whole` after it.
    pub(crate) fn publish(&mut self, now_ns: u64, event: &Body, mut whole: impl FnMut() -> Body) {
        self.connections.retain_mut(|c| match (c.is_stream, &c.output) {
            (false, _) => true,
            (true, Some(_)) => {
                c.has_missed = true;
                true
            }
            (true, None) => {
                let has_missed = std::mem::take(&mut c.has_missed);
                let event = if has_missed { &whole() } else { event };
                (c.output, c.since_ns) = (Some((event.part(c.coding), 0)), now_ns);
                c.send(now_ns)
            }
        });
    }

    /// Accepts a waiting connection, if there is one.
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

impl Connection {
    /// End of the time limit: of the whole request, of its answer, and of each wait for a reader
    /// that does not read. A stream without output has none.
    fn deadline_ns(&self) -> Option<u64> {
        let is_limited = self.output.is_some() || !self.is_stream;
        let patience_ns = if self.waits { ANSWER_PATIENCE_NS } else { READER_PATIENCE_NS };
        is_limited.then_some(self.since_ns + patience_ns)
    }

    /// Reads and writes as far as possible. Returns whether the connection stays.
    fn serve(&mut self, now_ns: u64, answer: &mut Answer) -> bool {
        while self.output.is_none() {
            let mut from = 0;
            if !self.waits {
                let mut bytes = [0; 1024];
                // An end mark of 4 bytes may begin in the bytes before.
                from = self.request.len().saturating_sub(3);
                match retry_on_intr(|| recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT)) {
                    Ok((0, _)) => return false,
                    Ok((count, _)) => self.request.extend_from_slice(&bytes[..count]),
                    Err(e) => return e == Errno::AGAIN,
                }
            }
            if self.is_stream {
                // A reader of events sends nothing.
                return false;
            }
            let (response, is_head) = match Request::parse(&self.request, from) {
                Ok(None) => continue,
                Ok(Some(request)) => match answer(&request) {
                    Some(response) => (response, request.is_head),
                    None if !self.waits => {
                        (self.waits, self.since_ns) = (true, now_ns);
                        return true;
                    }
                    None if now_ns < self.since_ns + ANSWER_PATIENCE_NS => return true,
                    None => {
                        let text = "the history is still being read; load the page again\n";
                        (Response::text("503 Service Unavailable", text), request.is_head)
                    }
                },
                Err(refusal) => (refusal, false),
            };
            self.waits = false;
            self.is_stream = response.is_stream && !is_head;
            self.coding = response.coding;
            self.output = Some((response.bytes(is_head).into(), 0));
            self.since_ns = now_ns;
            self.request = Vec::new();
        }
        self.send(now_ns)
    }

    /// Writes as far as possible. Returns whether the connection stays.
    fn send(&mut self, now_ns: u64) -> bool {
        while let Some((bytes, sent)) = &mut self.output {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match retry_on_intr(|| send(&self.socket, &bytes[*sent..], flags)) {
                Ok(count) => {
                    *sent += count;
                    self.since_ns = now_ns;
                }
                Err(e) => return e == Errno::AGAIN,
            }
            if *sent == bytes.len() {
                self.output = None;
            }
        }
        self.is_stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Request<'_>>, &'static str> {
        Request::parse(text.as_bytes(), 0).map_err(|refusal| refusal.status)
    }

    #[test]
    fn request_is_parsed_or_refused() {
        let request = parsed("GET /a?b=c HTTP/1.1\r\nHost: x\r\nCookie:  k=v \r\n\r\n");
        let request = request.unwrap().unwrap();
        assert_eq!((request.path, request.query, request.is_head), ("/a", "b=c", false));
        assert_eq!((request.header("HOST"), request.header("cookie")), (Some("x"), Some("k=v")));
        assert!(parsed("HEAD / HTTP/1.0\n\n").unwrap().unwrap().is_head);
        assert!(parsed("GET / HTTP/1.1\r\nHost: x\r\n").unwrap().is_none());
        let long = "a".repeat(REQUEST_BYTES_MAX + 1);
        assert_eq!(parsed(&long).unwrap_err(), "431 Request Header Fields Too Large");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"] {
            let text = format!("{method} / HTTP/1.1\r\n\r\n");
            assert_eq!(parsed(&text).unwrap_err(), "405 Method Not Allowed");
        }
        for bad in [
            "\n\n",
            "GET /\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET / / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nno header\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET / HTTP/1.1\r\n folded: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
        ] {
            assert_eq!(parsed(bad).unwrap_err(), "400 Bad Request", "{bad}");
        }
    }

    #[test]
    fn local_name_is_an_address_or_localhost() {
        let is_local = |host: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            parsed(&text).unwrap().unwrap().has_local_name()
        };
        for host in ["127.0.0.1", "127.0.0.1:9478", "localhost:1", "LocalHost", "[::1]:80", "[::1]"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "a:1:2"] {
            assert!(!is_local(host), "{host}");
        }
        assert!(parsed("GET / HTTP/1.1\r\n\r\n").unwrap().unwrap().has_local_name());
    }

    #[test]
    fn place_is_read_or_explained() {
        let tcp = |text: &str| Ok(Place::Tcp(text.parse().unwrap()));
        assert_eq!("9477".parse(), tcp("127.0.0.1:9477"));
        assert_eq!("127.0.0.1:9477".parse(), tcp("127.0.0.1:9477"));
        assert_eq!("[::1]:9477".parse(), tcp("[::1]:9477"));
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        for bad in ["", "0", "unix:x", "0.0.0.0:0", "99999", "localhost:9477", "unix:", "::1"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
        let is_local = |text: &str| text.parse::<Place>().unwrap().is_local();
        assert!(is_local("1") && is_local("[::1]:1") && is_local("unix:/x"));
        assert!(!is_local("0.0.0.0:1") && !is_local("[::]:1") && !is_local("192.0.2.1:1"));
    }

    /// A server at a new socket, and a reader of its events.
    fn stream() -> (tempfile::TempDir, Server, std::os::unix::net::UnixStream) {
        stream_with("")
    }

    /// As [`stream`], whose reader sends these headers.
    fn stream_with(headers: &str) -> (tempfile::TempDir, Server, std::os::unix::net::UnixStream) {
        use std::io::Write as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut server = Server::open(&Place::Unix(path.clone())).unwrap();
        let mut reader = std::os::unix::net::UnixStream::connect(path).unwrap();
        write!(reader, "GET /events HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut answer = |request: &Request| {
            let coding = request.coding();
            Some(Response { coding, is_stream: true, ..Response::text("200 OK", "first") })
        };
        server.serve(0, &mut answer);
        assert!(server.has_streams());
        (folder, server, reader)
    }

    fn none(_: &Request) -> Option<Response> {
        Some(Response::text("404 Not Found", ""))
    }

    #[test]
    fn slow_reader_of_events_misses_some_and_then_gets_everything() {
        use std::io::Read as _;
        let (_folder, mut server, mut reader) = stream();
        let whole = || Body::new("whole");
        // No buffer of a socket holds this event.
        let long = Body::new("x".repeat(16 << 20));
        server.publish(0, &long, || panic!("nothing was missed"));
        server.publish(0, &Body::new("missed"), || panic!("the reader is slow"));
        let mut received = vec![];
        while server.connections[0].output.is_some() {
            let mut bytes = vec![0; 1 << 20];
            let count = reader.read(&mut bytes).unwrap();
            received.extend_from_slice(&bytes[..count]);
            server.serve(0, &mut none);
        }
        server.publish(0, &Body::new("news"), whole);
        server.publish(0, &Body::new("more news"), whole);
        drop(server);
        reader.read_to_end(&mut received).unwrap();
        let text = String::from_utf8(received).unwrap();
        let text = text.split_once("\r\n\r\n").unwrap().1.replace('x', "");
        assert_eq!(text, "firstwholemore news");
    }

    #[test]
    fn reader_that_does_not_read_is_dropped_and_an_idle_stream_is_not() {
        let (_folder, mut server, _reader) = stream();
        assert_eq!(server.wake_at_ns(0), None);
        server.serve(10 * READER_PATIENCE_NS, &mut none);
        assert!(server.has_streams());
        let start_ns = 10 * READER_PATIENCE_NS;
        let long = Body::new("x".repeat(16 << 20));
        server.publish(start_ns, &long, || panic!("nothing was missed"));
        assert_eq!(server.wake_at_ns(start_ns), Some(start_ns + READER_PATIENCE_NS));
        server.serve(start_ns + READER_PATIENCE_NS, &mut none);
        assert!(!server.has_streams());
    }

    #[test]
    fn request_that_stays_incomplete_is_dropped() {
        let (folder, mut server, _reader) = stream();
        let _idle = std::os::unix::net::UnixStream::connect(folder.path().join("socket")).unwrap();
        server.serve(5, &mut none);
        assert_eq!(server.wake_at_ns(5), Some(5 + READER_PATIENCE_NS));
        assert_eq!(server.connections.len(), 2);
        server.serve(5 + READER_PATIENCE_NS, &mut none);
        assert_eq!(server.connections.len(), 1);
    }
    #[test]
    fn request_waits_for_an_answer_that_is_made_elsewhere() {
        use std::io::{Read as _, Write as _};
        let (folder, mut server, _stream) = stream();
        let mut readers = ["/", "/never"].map(|path| {
            let path_of_socket = folder.path().join("socket");
            let mut reader = std::os::unix::net::UnixStream::connect(path_of_socket).unwrap();
            write!(reader, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
            reader
        });
        server.serve(5, &mut |_| None);
        assert_eq!(server.wake_at_ns(5), Some(5 + ANSWER_PATIENCE_NS));
        // Neither an event nor the end of its limit wakes the server before the answer is ready.
        assert_eq!(server.sockets(5).count(), 2);
        server.serve(5 + READER_PATIENCE_NS, &mut |_| None);
        let late_ns = 5 + ANSWER_PATIENCE_NS - 1;
        server.serve(late_ns, &mut |r| (r.path == "/").then(|| Response::text("200 OK", "made")));
        let mut answer = String::new();
        readers[0].read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("made"), "{answer}");
        server.serve(late_ns + 1, &mut |_| None);
        answer.clear();
        readers[1].read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("again\n"), "{answer}");
    }

    #[test]
    fn reader_that_accepts_gzip_gets_all_events_in_one_stream() {
        use std::io::Read as _;
        let (_folder, mut server, mut reader) = stream_with("Accept-Encoding: br, gzip\r\n");
        for event in ["second, ", "third"] {
            server.publish(0, &Body::new(event), || panic!("nothing was missed"));
        }
        drop(server);
        let mut answer = vec![];
        reader.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]);
        assert!(head.contains("\r\nContent-Encoding: gzip"), "{head}");
        // The stream has no end.
        let mut text = vec![];
        let ended = flate2::read::GzDecoder::new(&answer[end + 4..]).read_to_end(&mut text);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(String::from_utf8(text).unwrap(), "firstsecond, third");
    }
}
