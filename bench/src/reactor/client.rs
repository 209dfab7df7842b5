//! The client: one thread with an epoll set, at most one outstanding request for each connection.
//! Its load has steps with a rate each.
//!
//! At a fixed rate, each request has a time at which it is due. Its latency begins at that time,
//! also if the client sends the request later, because an earlier answer is missing. So a pause of
//! the server delays all requests that are due meanwhile, and not only those that were sent
//! before it (correction for coordinated omission).

use super::MESSAGE_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time for which a server may not answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Number of reports of one wait.
const BATCH: usize = 256;

/// A rate at which each connection sends its next request when it has received an answer.
pub(super) const SATURATED: f64 = 1e9;

#[derive(Clone, Copy)]
pub(super) struct Load {
    /// Connections that send requests.
    pub(super) connections: usize,
    /// Connections that send one request each, before the others.
    pub(super) idle: usize,
    /// Requests per second in each step.
    pub(super) rates: &'static [f64],
    /// Time of a step.
    pub(super) step: Duration,
}

struct Connection {
    stream: TcpStream,
    request: [u8; MESSAGE_BYTES],
    answer: [u8; MESSAGE_BYTES],
    received: usize,
    /// Time at which the outstanding request was due.
    due: Instant,
}

impl Connection {
    fn ask(&mut self, number: u64, due: Instant) -> Result<(), String> {
        self.request[..8].copy_from_slice(&number.to_ne_bytes());
        (self.received, self.due) = (0, due);
        // The buffer of the system is empty, so that it takes the whole message.
        self.stream.write_all(&self.request).map_err(|e| format!("cannot send a request: {e}"))
    }

    /// Receives what has arrived. Returns whether the answer is complete.
    fn receive(&mut self) -> Result<bool, String> {
        match self.stream.read(&mut self.answer[self.received..]) {
            Ok(0) => Err("the server closed a connection".into()),
            Ok(count) => {
                self.received += count;
                let is_complete = self.received == MESSAGE_BYTES;
                match is_complete && self.answer != self.request {
                    true => Err("an answer differs from its request".into()),
                    false => Ok(is_complete),
                }
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(why) => Err(format!("cannot receive an answer: {why}")),
        }
    }
}

/// Requests, their time, and the increase of the CPU time of the server meanwhile, both in seconds.
pub(super) struct Served {
    pub(super) requests: u64,
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    /// Latencies in nanoseconds, in ascending order; none for the rate [`SATURATED`].
    latencies_ns: Vec<u64>,
}

impl Served {
    /// Returns the CPU time of the server for a request, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> f64 {
        self.cpu_s * 1e9 / self.requests as f64
    }

    /// Returns the latency in microseconds that this share of the requests does not exceed.
    pub(super) fn latency_us(&self, share: f64) -> Result<f64, String> {
        let rank = (self.latencies_ns.len() as f64 * share).ceil() as usize;
        let latency_ns = self.latencies_ns.get(rank.max(1) - 1).ok_or("there is no latency")?;
        Ok(*latency_ns as f64 / 1e3)
    }
}

struct Client {
    set: OwnedFd,
    connections: Vec<Connection>,
    /// Connections without an outstanding request. The one that has been idle longest sends the
    /// next request, so that low rates use all connections, too.
    idle: VecDeque<usize>,
    requests: u64,
    latencies_ns: Vec<u64>,
}

impl Client {
    fn connect(port: u16, count: usize) -> Result<Client, String> {
        let system = |what: &'static str| move |why| format!("cannot {what}: {why}");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let mut connections = Vec::new();
        for n in 0..count {
            let stream = TcpStream::connect(("127.0.0.1", port)).map_err(system("connect"))?;
            stream.set_nodelay(true).map_err(system("set an option"))?;
            stream.set_nonblocking(true).map_err(system("set an option"))?;
            let key = epoll::EventData::new_u64(n as u64);
            epoll::add(&set, &stream, key, epoll::EventFlags::IN).map_err(|e| e.to_string())?;
            let (request, answer) = ([7; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
            let due = Instant::now();
            connections.push(Connection { stream, request, answer, received: 0, due });
        }
        let idle = (0..count).collect();
        Ok(Client { set, idle, connections, requests: 0, latencies_ns: Vec::new() })
    }

    /// Sends this number of requests per second for a time, as far as connections are idle. At a
    /// fixed rate, sends all requests that are due within the time, and receives their answers.
    /// Returns the time.
    fn serve(&mut self, rate: f64, time: Duration) -> Result<f64, String> {
        let is_paced = rate < SATURATED;
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; BATCH];
        let (begin, before) = (Instant::now(), self.requests);
        let all = before + (time.as_secs_f64() * rate) as u64;
        let is_missing =
            |client: &Client| client.requests < all || client.idle.len() < client.connections.len();
        loop {
            // One look at the clock: a request that is due only after it is sent in a later turn.
            let now = begin.elapsed();
            let is_over = now >= time;
            if is_over && !(is_paced && is_missing(self)) {
                break;
            }
            let due = before + (now.min(time).as_secs_f64() * rate) as u64;
            while self.requests < due
                && let Some(n) = self.idle.pop_front()
            {
                self.requests += 1;
                let due = Duration::from_secs_f64((self.requests - before) as f64 / rate);
                self.connections[n].ask(self.requests, begin + due)?;
            }
            let next_s = (self.requests + 1 - before) as f64 / rate;
            let is_busy = self.idle.is_empty() || is_over;
            let end = Duration::from_secs_f64(next_s).min(time);
            let limit = if is_busy { ANSWER_MAX } else { end.saturating_sub(begin.elapsed()) };
            let count = wait(&self.set, &mut events, limit)?;
            if count == 0 && is_busy {
                return Err(format!("no answer in {} s", ANSWER_MAX.as_secs()));
            }
            for event in &events[..count] {
                let n = event.data.u64() as usize;
                let connection = &mut self.connections[n];
                if connection.receive()? {
                    if is_paced {
                        self.latencies_ns.push(connection.due.elapsed().as_nanos() as u64);
                    }
                    self.idle.push_back(n);
                }
            }
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Waits for reports. Returns their number, 0 after the limit. `epoll_wait` rounds limits up to
/// milliseconds, which would delay the requests of a fixed rate; `ppoll` does not.
fn wait(set: &OwnedFd, events: &mut [epoll::Event], limit: Duration) -> Result<usize, String> {
    let failed = |why: rustix::io::Errno| format!("cannot wait for answers: {why}");
    let limit = Timespec::try_from(limit).map_err(|e| e.to_string())?;
    poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&limit)).map_err(failed)?;
    epoll::wait(set, events, Some(&Timespec::default())).map_err(failed)
}

/// Connects, and exchanges one message on each connection, so that the server has processed it.
pub(super) fn connect_idle(port: u16, count: usize) -> Result<Vec<TcpStream>, String> {
    let connect = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(&[7; MESSAGE_BYTES])?;
        stream.read_exact(&mut [0; MESSAGE_BYTES])?;
        Ok(stream)
    };
    let connected = (0..count).map(connect).collect::<std::io::Result<_>>();
    connected.map_err(|e| format!("cannot open {count} idle connections: {e}"))
}

/// Measures the steps of a load, after its first step has run for a fifth of its time.
pub(super) fn run(
    port: u16,
    load: &Load,
    cpu_s: impl Fn() -> Result<f64, String>,
) -> Result<Served, String> {
    let _idle = connect_idle(port, load.idle)?;
    let mut client = Client::connect(port, load.connections)?;
    client.serve(load.rates[0], load.step / 5)?;
    client.latencies_ns.clear();
    let (before, used) = (client.requests, cpu_s()?);
    let steps = load.rates.iter().map(|rate| client.serve(*rate, load.step));
    let wall_s = steps.sum::<Result<f64, String>>()?;
    let cpu_s = cpu_s()? - used;
    let mut latencies_ns = client.latencies_ns;
    latencies_ns.sort_unstable();
    Ok(Served { requests: client.requests - before, wall_s, cpu_s, latencies_ns })
}
