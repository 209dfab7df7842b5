//! The web page of the host, served by a thread of its own.
//!
//! The control loop hands an [`Update`] over each second, and never waits for the thread
//! (`outlet`).

use crate::body::{Body, Coding};
use crate::http::{Place, Request, Response, Server};
use crate::limit::{UPDATES_WAITING_MAX, WEB_NICE, WEB_PAUSE};
use crate::outlet::{Outlet, Sent};
use crate::past::PastPages;
use crate::socket::Scope;
use corebeat_sync::quiet;
use corebeat_web::{Decision, Machine, Page, Part, Past, Range, State, Update};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Least length of a token, in characters.
const TOKEN_CHARS_MIN: usize = 16;
/// Largest length of a token, in characters: a longer one may not fit into a request.
const TOKEN_CHARS_MAX: usize = 1024;

/// A secret that a browser sends to get the page.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Reason why a text is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token has not {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, or others than letters, \
     digits and +/=_.~-; write one with 'openssl rand -hex 32'"
)]
pub struct InvalidToken;

impl std::str::FromStr for Token {
    type Err = InvalidToken;

    /// A token from the content of a file: white space around it is ignored.
    fn from_str(text: &str) -> Result<Token, InvalidToken> {
        let text = text.trim();
        let is_valid = |b: u8| b.is_ascii_alphanumeric() || b"+/=_.~-".contains(&b);
        let length = TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX;
        let fits = length.contains(&text.len()) && text.bytes().all(is_valid);
        fits.then(|| Token(text.into())).ok_or(InvalidToken)
    }
}

/// The token itself is not printed.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Place of the web page, and its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebPage {
    place: Place,
    token: Option<Token>,
}

/// Others than the users that the daemon serves can connect to the page, or users can connect that
/// may not list the programs of each other, and there is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the web page on {place} needs a token, because {others} can connect to it; name the file of a \
     token with --web-token, or serve the page on unix:/PATH"
)]
pub struct MissingToken {
    place: Place,
    others: &'static str,
}

impl WebPage {
    /// A page at this place, which requires this token.
    pub fn new(place: Place, token: Option<Token>) -> WebPage {
        WebPage { place, token }
    }

    /// Requires a token where users without permission can connect. The socket of a daemon with the
    /// scope of the host lists only the own programs of the caller; the page cannot distinguish the
    /// users of TCP connections.
    pub(crate) fn check(&self, scope: Scope) -> Result<(), MissingToken> {
        let others = match (&self.token, &self.place, scope) {
            (Some(_), ..) | (None, Place::Unix(_), _) => return Ok(()),
            (None, place, _) if !place.is_local() => "other hosts",
            (None, _, Scope::Host) => "all users of this host",
            (None, _, Scope::User) => return Ok(()),
        };
        Err(MissingToken { place: self.place.clone(), others })
    }

    /// Address of the page, for users. The token is not part of it.
    pub(crate) fn address(&self) -> String {
        match (&self.place, &self.token) {
            (Place::Unix(_), _) => self.place.to_string(),
            (Place::Tcp(address), None) => format!("http://{address}/"),
            (Place::Tcp(address), Some(_)) => format!("http://{address}/?token=TOKEN"),
        }
    }

    /// Place of the page.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}

/// The page, as the control loop uses it.
#[derive(Debug)]
pub(crate) struct Web {
    /// `None` only while the value is dropped.
    outlet: Option<Outlet>,
    /// Wakes the thread after an update.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Whether the page shows groups that other users may not list.
    pub(crate) shows_all: bool,
}

impl Web {
    /// Starts to serve the page by a server at its place, with the recorded past of the host.
    pub(crate) fn start(
        page: &WebPage,
        server: Server,
        past: Option<Arc<dyn Past>>,
    ) -> io::Result<Web> {
        let shows_all = server.is_private() || page.token.is_some();
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (updates, receiver) = sync_channel(UPDATES_WAITING_MAX);
        let site = Site::new(page)?;
        let pages = past.map(|past| {
            let event = Arc::clone(&event);
            PastPages::start(past, shows_all, move || wake(&event))
        });
        let pages = pages.transpose()?;
        let waker = Arc::clone(&event);
        let thread = quiet::spawn("web", move || serve(server, &site, pages, &receiver, &waker))?;
        let outlet = Some(Outlet::new(updates));
        Ok(Web { outlet, wake: event, thread: Some(thread), shows_all })
    }

    /// Adds a decision to the next update.
    pub(crate) fn note(&mut self, decision: Decision) {
        self.outlet.iter_mut().for_each(|outlet| outlet.note(decision.clone()));
    }

    /// Hands an update over. Never waits.
    pub(crate) fn send(&mut self, update: Update) {
        if self.outlet.as_mut().is_some_and(|outlet| outlet.send(update) == Sent::Queued) {
            wake(&self.wake);
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.outlet = None;
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // The thread ends when it finds that there is no sender.
            let _ = thread.join();
        }
    }
}

fn wake(fd: &OwnedFd) {
    // A full counter wakes as well.
    let _ = write(fd, &1u64.to_ne_bytes());
}

/// Serves the page until the queue has no sender.
fn serve(
    mut server: Server,
    site: &Site,
    pages: Option<PastPages>,
    updates: &Receiver<Update>,
    wake: &OwnedFd,
) {
    // Without the value, the page costs the control loop more time; nothing else changes.
    let _ = rustix::process::nice(WEB_NICE);
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut content = Content::new(State::of_host(node, Machine::of_host()), pages);
    loop {
        wait(&server, wake);
        let _ = read(wake, &mut [0; 8]);
        let now_ns = corebeat_host::now_ns();
        loop {
            match updates.try_recv() {
                Ok(update) => {
                    content.update(update);
                    if server.has_streams() {
                        let news = message(&content.state, Part::News);
                        server.publish(now_ns, &news, || content.whole());
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        content.past.iter_mut().for_each(|pages| pages.take(now_ns));
        server.serve(now_ns, &mut |request| site.answer(request, &mut content, now_ns));
    }
}

/// The content of the page, and what was made of it since the last update: requests in a loop make
/// nothing anew.
#[derive(Debug)]
struct Content {
    state: State,
    page: Option<Response>,
    whole: Option<Body>,
    /// The pages about the past, if the host has a history.
    past: Option<PastPages>,
}

impl Content {
    fn new(mut state: State, past: Option<PastPages>) -> Content {
        state.has_past = past.is_some();
        Content { state, page: None, whole: None, past }
    }

    fn update(&mut self, mut update: Update) {
        update.name_claims(&self.state.claims);
        self.state.update(update);
        (self.page, self.whole) = (None, None);
    }

    /// The answer to a permitted request. `None` if it is being made.
    fn answer(&mut self, request: &Request, now_ns: u64) -> Option<Response> {
        match (request.path, request.parameter("range")) {
            ("/", None) => Some(self.page()),
            ("/", Some(range)) => self.past(range, now_ns),
            ("/events", _) => Some(Response {
                status: "200 OK",
                headers: vec![
                    ("Content-Type", "text/event-stream".into()),
                    // A proxy such as nginx sends events on at once.
                    ("X-Accel-Buffering", "no".into()),
                ],
                body: self.whole(),
                coding: Coding::Plain,
                is_stream: true,
            }),
            _ => Some(Response::text("404 Not Found", "the only page is /\n")),
        }
    }

    /// The page. The number in its policy is the same until the next update. A name that was chosen
    /// after the number is in a later page, with another number.
    fn page(&mut self) -> Response {
        self.page.get_or_insert_with(|| Response::page(self.state.live_page())).clone()
    }

    /// The page about the past that a query names. `None` if it is being made.
    fn past(&mut self, range: &str, now_ns: u64) -> Option<Response> {
        let refused = |text| Some(Response::text("404 Not Found", text));
        match (Range::named(range), &mut self.past) {
            (Some(range), Some(pages)) => pages.page(range, now_ns),
            (None, _) => refused("the only ranges are 1h and 1d\n"),
            (_, None) => {
                refused("no history is recorded; start 'corebeat daemon --web --history'\n")
            }
        }
    }

    /// The event with everything.
    fn whole(&mut self) -> Body {
        self.whole.get_or_insert_with(|| message(&self.state, Part::Whole)).clone()
    }
}

/// Waits for a connection, an update, or the end of a time limit.
fn wait(server: &Server, wake: &OwnedFd) {
    let now_ns = corebeat_host::now_ns();
    let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    fds.extend(server.sockets(now_ns).map(|(fd, is_written)| {
        PollFd::from_borrowed_fd(fd, if is_written { PollFlags::OUT } else { PollFlags::IN })
    }));
    let timeout = server.wake_at_ns(now_ns).map(|at| at.saturating_sub(now_ns));
    let timeout = timeout.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // The kernel lacks memory.
        Err(_) => std::thread::sleep(WEB_PAUSE),
    }
}

/// An event of a stream.
fn message(state: &State, part: Part) -> Body {
    let retry = if part == Part::Whole { "retry: 3000\n" } else { "" };
    // JSON is one line.
    Body::new(format!("{retry}data: {}\n\n", state.json(part)))
}

/// The access to the page.
#[derive(Debug)]
struct Site {
    token: Option<Token>,
    /// Name and value of the cookie of a browser that has sent the token. The browser sends the
    /// cookie to servers on other ports as well, so that the value is not the token.
    cookie: String,
}

impl Site {
    fn new(page: &WebPage) -> io::Result<Site> {
        let port = match page.place() {
            Place::Unix(_) => 0,
            Place::Tcp(address) => address.port(),
        };
        let cookie = format!("corebeat-{port}={}", corebeat_web::secret()?);
        Ok(Site { token: page.token.clone(), cookie })
    }

    /// `None` if the answer is being made.
    fn answer(&self, request: &Request, content: &mut Content, now_ns: u64) -> Option<Response> {
        let mut response = match self.refusal(request) {
            Some(refusal) => refusal,
            None => content.answer(request, now_ns)?,
        };
        let policy = "default-src 'none'; frame-ancestors 'none'";
        if !response.headers.iter().any(|(name, _)| *name == POLICY) {
            response.headers.push((POLICY, policy.into()));
        }
        let headers = [
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ];
        response.headers.extend(headers.map(|(name, value)| (name, value.to_owned())));
        response.coding = request.coding();
        Some(response)
    }

    /// The answer to a request that does not get a page.
    fn refusal(&self, request: &Request) -> Option<Response> {
        // A page of another site has neither the token nor the cookie, under whatever name.
        if self.token.is_none() && !request.has_local_name() {
            let text = "this name is not served without a token; write the address of the host, \
                        such as 127.0.0.1, or localhost\n";
            return Some(Response::text("403 Forbidden", text));
        }
        if is_from_another_site(request) {
            let text = "pages of other sites may not load this one\n";
            return Some(Response::text("403 Forbidden", text));
        }
        let token = self.token.as_ref()?;
        let bearer = request.header("authorization").and_then(|text| text.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let mut cookies = request.header("cookie").unwrap_or_default().split("; ");
        if bearer.is_some_and(|(_, sent)| is_equal(sent.trim_start(), &token.0))
            || cookies.any(|sent| is_equal(sent, &self.cookie))
        {
            return None;
        }
        let sent = request.parameter("token");
        if request.path == "/" && sent.is_some_and(|sent| is_equal(sent, &token.0)) {
            // The token stays neither in the address bar nor in the history.
            let mut response = Response::text("303 See Other", "");
            // Lax: a link from another site opens the page, which can only be read.
            let cookie = format!("{}; Path=/; HttpOnly; SameSite=Lax", self.cookie);
            response.headers.extend([("Location", "/".into()), ("Set-Cookie", cookie)]);
            return Some(response);
        }
        let text = "the token is missing or wrong; open /?token=TOKEN with the token from the file \
                    of --web-token, or send it as 'Authorization: Bearer TOKEN'\n";
        let mut response = Response::text("401 Unauthorized", text);
        response.headers.push(("WWW-Authenticate", "Bearer".into()));
        Some(response)
    }
}

const POLICY: &str = "Content-Security-Policy";

impl Response {
    /// An answer with a page.
    pub(crate) fn page(made: io::Result<Page>) -> Response {
        match made {
            Ok(page) => Response {
                status: "200 OK",
                headers: vec![
                    ("Content-Type", "text/html; charset=utf-8".into()),
                    (POLICY, page.policy),
                ],
                body: Body::new(page.html),
                coding: Coding::Plain,
                is_stream: false,
            },
            Err(e) => {
                let text = format!("the kernel has no random numbers: {e}; load the page again\n");
                Response::text("503 Service Unavailable", text)
            }
        }
    }
}

/// Whether a page of another site made the request, and not a user who opened the page. (Only old
/// browsers do not state this.)
fn is_from_another_site(request: &Request) -> bool {
    let is_foreign_origin = request.header("origin").is_some_and(|origin| {
        let host = request.header("host").unwrap_or_default();
        origin.strip_prefix("http://").is_none_or(|origin| origin != host)
    });
    let site = request.header("sec-fetch-site").unwrap_or("none");
    let is_opened = request.path == "/"
        && request.header("sec-fetch-mode") == Some("navigate")
        && request.header("sec-fetch-dest") == Some("document");
    is_foreign_origin || !(["none", "same-origin"].contains(&site) || is_opened)
}

/// Compares texts in a time that depends on their lengths only.
fn is_equal(sent: &str, expected: &str) -> bool {
    let differences = sent.bytes().zip(expected.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    sent.len() == expected.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{READERS_MAX, STREAMS_MAX};
    use crate::past::tests::slow;
    use corebeat_machine::{TimeShares, Topology};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    const TOKEN: &str = "0123456789abcdef";
    const SECOND: u64 = 1_000_000_000;

    /// A page on a free port, which the system chose. A port that another process takes at the same
    /// time is tried again.
    fn open(token: Option<&str>) -> (Web, SocketAddr) {
        open_with(token, None)
    }

    /// As [`open`], with a history.
    fn open_with(token: Option<&str>, past: Option<Arc<dyn Past>>) -> (Web, SocketAddr) {
        for _ in 0..100 {
            let address = {
                let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                free.local_addr().unwrap()
            };
            let token = token.map(|token| token.parse().unwrap());
            let page = WebPage::new(Place::Tcp(address), token);
            match Server::open(page.place()) {
                Ok(server) => {
                    let web = Web::start(&page, server, past).unwrap();
                    return (web, address);
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => panic!("{e}"),
            }
        }
        panic!("there is no free port");
    }

    /// The answer to a request with these headers.
    fn ask(address: SocketAddr, request: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // A stream of events that should have been refused does not end.
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        write!(stream, "{request} HTTP/1.1\r\n{host}{headers}\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn status(address: SocketAddr, request: &str, headers: &str) -> String {
        let answer = ask(address, request, headers);
        answer.strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned()
    }

    #[test]
    fn page_is_served_to_get_and_head_alone() {
        let (_web, address) = open(None);
        let page = ask(address, "GET /", "");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("</html>"), "{page}");
        for header in ["Content-Security-Policy: default-src 'none'; ", "nosniff", "no-store"] {
            assert!(page.contains(header), "{header}: {page}");
        }
        let head = ask(address, "HEAD /", "");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(status(address, &format!("{method} /"), ""), "405");
        }
    }

    #[test]
    fn no_path_but_those_of_the_page_is_served() {
        let (_web, address) = open(None);
        for path in [
            "/../../../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "//etc/passwd",
            "/events/../..//etc/passwd",
            "/metrics",
            "http://localhost/",
            "*",
        ] {
            let answer = ask(address, &format!("GET {path}"), "");
            assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("root:"), "{answer}");
        }
    }

    #[test]
    fn name_of_another_host_is_refused_without_a_token() {
        let (_web, address) = open(None);
        for host in ["evil.example", "evil.example:9478", "127.0.0.1.evil.example", ""] {
            for path in ["/", "/events"] {
                let header = format!("Host: {host}\r\n");
                assert_eq!(status(address, &format!("GET {path}"), &header), "403", "{host}");
            }
        }
        for host in ["127.0.0.1:1", "localhost", "[::1]:9478"] {
            assert_eq!(status(address, "GET /", &format!("Host: {host}\r\n")), "200");
        }
    }

    #[test]
    fn request_of_another_site_is_refused() {
        let (_web, address) = open(None);
        for headers in [
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n",
            "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
            "Origin: http://evil.example\r\n",
            "Origin: null\r\n",
        ] {
            assert_eq!(status(address, "GET /events", headers), "403", "{headers}");
            assert_eq!(status(address, "GET /", headers), "403", "{headers}");
        }
        let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
        assert_eq!(status(address, "GET /", link), "200", "a user has followed a link");
        assert_eq!(status(address, "GET /events", link), "403");
        let own = "Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost\r\n";
        assert_eq!(status(address, "GET /", own), "200");
    }

    #[test]
    fn token_is_required_once_and_a_cookie_replaces_it() {
        let (_web, address) = open(Some(TOKEN));
        for (request, headers) in [
            ("GET /", ""),
            ("GET /events", ""),
            ("GET /?token=0123456789abcdeX", ""),
            ("GET /?token=", ""),
            ("GET /?token=0123456789abcdef0", ""),
            ("GET /events?token=0123456789abcdef", ""),
            ("GET /", "Authorization: Bearer 0123456789abcde\r\n"),
            ("GET /", "Cookie: corebeat-0=0\r\n"),
        ] {
            assert_eq!(status(address, request, headers), "401", "{request} {headers}");
        }
        let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
        assert_eq!(status(address, "GET /", &bearer), "200");
        let lower_case = format!("Authorization: bearer  {TOKEN}\r\n");
        assert_eq!(status(address, "GET /", &lower_case), "200");
        assert_eq!(status(address, "GET /", &(bearer + "Host: any.example\r\n")), "200");
        let answer = ask(address, &format!("GET /?token={TOKEN}"), "");
        assert!(answer.starts_with("HTTP/1.1 303 ") && answer.contains("\r\nLocation: /\r\n"));
        let cookie = answer.split("\r\nSet-Cookie: ").nth(1).unwrap();
        let (cookie, attributes) = cookie.split_once(';').unwrap();
        assert!(attributes.starts_with(" Path=/; HttpOnly; SameSite=Lax"), "{attributes}");
        assert!(!cookie.contains(TOKEN));
        // A browser sends the cookies of other servers of the host as well.
        let others = format!("a={}; ", "b".repeat(12_000));
        assert_eq!(status(address, "GET /", &format!("Cookie: {others}{cookie}\r\n")), "200");
        assert_eq!(status(address, "GET /", &format!("Cookie: a=b; {cookie}\r\n")), "200");
    }

    #[test]
    fn page_for_other_hosts_and_users_needs_a_token() {
        let page = |place: &str, token: Option<&str>| {
            WebPage::new(place.parse().unwrap(), token.map(|token| token.parse().unwrap()))
        };
        for (place, scope, others) in [
            ("0.0.0.0:1", Scope::User, Some("other hosts")),
            ("0.0.0.0:1", Scope::Host, Some("other hosts")),
            ("127.0.0.1:1", Scope::Host, Some("all users of this host")),
            ("127.0.0.1:1", Scope::User, None),
            ("unix:/x", Scope::Host, None),
        ] {
            let refused = page(place, None).check(scope).map_err(|e| e.to_string());
            assert_eq!(refused.is_err(), others.is_some(), "{place} {scope:?}");
            let names = |text: &String| {
                [place, "--web-token", others.unwrap_or("")].iter().all(|part| text.contains(part))
            };
            assert!(refused.as_ref().err().is_none_or(names), "{refused:?}");
            assert_eq!(page(place, Some(TOKEN)).check(scope), Ok(()));
            assert!(!page(place, Some(TOKEN)).address().contains(TOKEN));
        }
        for bad in
            ["", "short", "with a space in the middle", "0123456789abcde&", "0123456789äbcdef"]
        {
            assert_eq!(bad.parse::<Token>(), Err(InvalidToken), "{bad}");
        }
        assert_eq!("a".repeat(TOKEN_CHARS_MAX + 1).parse::<Token>(), Err(InvalidToken));
        let token: Token = format!("  {TOKEN}\n").parse().unwrap();
        assert_eq!((&token.0[..], format!("{token:?}")), (TOKEN, "Token".into()));
    }

    /// The events of a stream, one JSON value each, and all text so far.
    struct Events(io::BufReader<TcpStream>, String);

    impl Events {
        fn of(address: SocketAddr) -> Events {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            Events(io::BufReader::new(stream), String::new())
        }

        fn next(&mut self) -> serde_json::Value {
            use io::BufRead;
            loop {
                let mut line = String::new();
                assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
                self.1 += &line;
                if let Some(json) = line.strip_prefix("data: ") {
                    return serde_json::from_str(json).unwrap();
                }
            }
        }
    }

    fn update(seconds: u64, name: &str) -> Update {
        let program = corebeat_web::Program { id: 1, name: name.into(), ..Default::default() };
        let at_ns = seconds * SECOND;
        Update { at_ns, steering: true, programs: vec![program], ..Update::default() }
    }

    #[test]
    fn stream_has_the_whole_content_and_then_the_news() {
        let (mut web, address) = open(None);
        let mut events = Events::of(address);
        let first = events.next();
        assert!(events.1.contains("\r\nX-Accel-Buffering: no\r\n"), "{}", events.1);
        assert_eq!((&first["whole"], &first["programs"]), (&true.into(), &serde_json::json!([])));
        let name = "<script>alert(1)</script>";
        web.note(Decision { what: name.into(), unix_s: Some(2e9), ..Decision::default() });
        web.send(update(1, name));
        let news = events.next();
        assert_eq!((&news["whole"], &news["programs"][0]["name"]), (&false.into(), &name.into()));
        assert_eq!((&news["decisions"][0]["what"], &news["at_s"]), (&name.into(), &1.0.into()));
        assert!(news["decisions"][0]["unix_s"].as_f64().unwrap() > 1e9, "{news}");
        let page = ask(address, "GET /", "");
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>"), "{page}");
        drop(web);
        let mut rest = String::new();
        events.0.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("data"), "the stream ends with the daemon: {rest}");
    }

    #[test]
    fn live_page_is_served_while_the_past_is_read() {
        for (token, all) in [(None, false), (Some(TOKEN), true)] {
            let note = &format!("Hour of all groups: {all}");
            let (past, permits) = slow();
            let (_web, address) = open_with(token, Some(past));
            let headers = format!("Authorization: Bearer {TOKEN}\r\n");
            let asker = headers.clone();
            let hour = std::thread::spawn(move || ask(address, "GET /?range=1h", &asker));
            for _ in 0..10 {
                assert!(ask(address, "GET /", &headers).contains("<a href=\"./?range=1h\""));
            }
            permits.send(Ok(())).unwrap();
            let page = hour.join().unwrap();
            assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains(note), "{page}");
            assert!(page.contains("frame-ancestors 'none'") && page.contains("nosniff"), "{page}");
            // It is kept.
            assert!(ask(address, "GET /?range=1h", &headers).contains(note));
            assert_eq!(status(address, "GET /?range=1w", &headers), "404");
        }
    }

    #[test]
    fn past_without_a_history_or_a_token_is_refused() {
        let (_web, address) = open(None);
        let page = ask(address, "GET /?range=1h", "");
        assert!(page.starts_with("HTTP/1.1 404 ") && page.contains("--web --history"), "{page}");
        let (_web, address) = open(Some(TOKEN));
        assert_eq!(status(address, "GET /?range=1h", ""), "401");
    }

    #[test]
    fn page_and_event_are_made_once_for_each_update() {
        let state = State::of_host(String::new(), Machine::default());
        let mut content = Content::new(state, None);
        let (page, whole) = (content.page().body, content.whole());
        assert_eq!(content.page().body, page, "a page that is made anew has another nonce");
        assert!(content.whole().is_same(&whole));
        content.update(Update { at_ns: SECOND, ..Update::default() });
        assert!(content.page().body != page && !content.whole().is_same(&whole));
    }

    /// A host with many programs, and what browsers load of its page first.
    #[test]
    fn page_of_many_programs_loads_less_than_200_kb() {
        const BYTES_MAX: usize = 200_000;
        let mut random = fastrand::Rng::with_seed(1);
        let machine = Machine { topology: Some(Topology::flat(64)), ..Machine::default() };
        let mut content = Content::new(State::of_host("host".into(), machine), None);
        (1..=300).for_each(|second| content.update(update_of_many(second, &mut random)));
        let request = "GET / HTTP/1.1\r\nAccept-Encoding: gzip, deflate, br\r\n\r\n";
        let request = Request::parse(request.as_bytes(), 0).unwrap().unwrap();
        assert_eq!(request.coding(), Coding::Gzip);
        let (page, whole) = (content.page().body, content.whole());
        let bytes =
            [Coding::Gzip, Coding::Plain].map(|c| page.whole(c).len() + whole.begin(c).len());
        assert!(bytes[0] < BYTES_MAX, "{bytes:?}");
        let news = message(&content.state, Part::News).part(Coding::Gzip).len();
        assert!(news < BYTES_MAX / 5, "{news}");
    }

    /// An update with 256 programs and 64 groups, as on a busy host.
    fn update_of_many(second: u64, random: &mut fastrand::Rng) -> Update {
        let at_ns = second * SECOND;
        let names = ["postgres", "python3", "cc1plus", "chrome", "java", "node", "ld.lld", "nginx"];
        let program = |id: u32, random: &mut fastrand::Rng| {
            // A program computes, or waits.
            let user = if id.is_multiple_of(4) { random.f64() } else { 0.01 * random.f64() };
            let shares = TimeShares {
                user: Some(user),
                system: Some(0.1 * user),
                sleep: Some(1.0 - 1.1 * user),
                ..TimeShares::ZERO
            };
            let threads = random.usize(1..16);
            let thread_ns = SECOND * threads as u64;
            let span_ns = SECOND + random.u64(..1_000_000);
            let point = corebeat_host::Point { at_ns, span_ns, thread_ns, shares, threads };
            let thread = |tid| corebeat_web::Thread {
                tid: 100_000 + 37 * id as i32 + tid,
                name: format!("worker {tid}"),
                running: random.f64(),
                cpu: Some(random.u32(..64)),
            };
            corebeat_web::Program {
                id,
                pid: Some(100_000 + 37 * id as i32),
                name: names[id as usize % names.len()].into(),
                policy: "auto".into(),
                changes: vec!["class batch".into(), "slice 100 ms".into()],
                points: [point].into(),
                threads: (0..4).map(thread).collect(),
                cpus: vec![id % 64],
                ..Default::default()
            }
        };
        let group = |group| corebeat_web::Group {
            group,
            pids: vec![group],
            rates: [(at_ns, random.f64())].into(),
            ..Default::default()
        };
        let groups = (0..64).map(group).collect();
        let decision = Decision {
            program: names[second as usize % names.len()].into(),
            policy: "faithful".into(),
            what: "slice 100 ms".into(),
            why: format!("threads wait for a CPU for {second}% of the time"),
            unix_s: Some(second as f64),
            ..Decision::default()
        };
        let programs = (0..256).map(|id| program(id, random)).collect();
        let decisions = vec![decision; 2];
        Update { at_ns, steering: true, programs, groups, decisions, ..Update::default() }
    }

    /// Whether the server has not closed the connection.
    fn is_open(stream: &mut TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0; 4096]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    #[test]
    fn many_connections_are_bounded_and_the_page_is_served_beside_them() {
        // Both ends of all connections are in this process.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let (_web, address) = open(None);
        let mut slow = vec![];
        for n in 0..1000 {
            let mut stream = TcpStream::connect(address).unwrap();
            // No request, half of one, and streams.
            let text = ["", "GET / HT", "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"][n % 3];
            // The server may have closed the connection for later ones.
            let _ = stream.write_all(text.as_bytes());
            slow.push(stream);
            if n % 100 == 0 {
                assert_eq!(status(address, "GET /", ""), "200");
            }
        }
        // The server accepts connections in their order.
        assert_eq!(status(address, "GET /", ""), "200");
        let open = slow.iter_mut().map(is_open).filter(|is_open| *is_open).count();
        assert!((1..=READERS_MAX + STREAMS_MAX).contains(&open), "{open}");
    }
}
