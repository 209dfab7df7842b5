//! The client: one thread with an epoll set, at most one outstanding request for each connection.

use super::MESSAGE_BYTES;
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time for which a server may not answer.
const ANSWER_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// Number of reports of one wait.
const BATCH: usize = 256;

pub(super) struct Load {
    pub(super) connections: usize,
    /// Measured time. The client runs for a fifth of this time before.
    pub(super) time: Duration,
}

struct Connection {
    stream: TcpStream,
    request: [u8; MESSAGE_BYTES],
    answer: [u8; MESSAGE_BYTES],
    received: usize,
}

impl Connection {
    fn ask(&mut self, number: u64) -> Result<(), String> {
        self.request[..8].copy_from_slice(&number.to_ne_bytes());
        self.received = 0;
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

/// Returns the number of requests in the measured time, that time, and the increase of `cpu_s` in
/// it, both in seconds.
pub(super) fn run(
    port: u16,
    load: &Load,
    cpu_s: impl Fn() -> Result<f64, String>,
) -> Result<(u64, f64, f64), String> {
    let system = |what: &'static str| move |why| format!("cannot {what}: {why}");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
    let mut connections = Vec::new();
    for n in 0..load.connections {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(system("connect"))?;
        stream.set_nodelay(true).map_err(system("set an option"))?;
        stream.set_nonblocking(true).map_err(system("set an option"))?;
        let key = epoll::EventData::new_u64(n as u64);
        epoll::add(&set, &stream, key, epoll::EventFlags::IN).map_err(|e| e.to_string())?;
        let (request, answer) = ([7; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
        connections.push(Connection { stream, request, answer, received: 0 });
    }
    let mut requests = 0;
    for connection in &mut connections {
        requests += 1;
        connection.ask(requests)?;
    }
    let empty =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [empty; BATCH];
    let mut serve = |time: Duration, requests: &mut u64| -> Result<f64, String> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            let count = epoll::wait(&set, &mut events[..], Some(&ANSWER_MAX));
            let count = count.map_err(|e| format!("cannot wait for answers: {e}"))?;
            if count == 0 {
                return Err(format!("no answer in {} s", ANSWER_MAX.tv_sec));
            }
            for event in &events[..count] {
                let connection = &mut connections[event.data.u64() as usize];
                if connection.receive()? {
                    *requests += 1;
                    connection.ask(*requests)?;
                }
            }
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    serve(load.time / 5, &mut requests)?;
    let (before, used) = (requests, cpu_s()?);
    let wall_s = serve(load.time, &mut requests)?;
    Ok((requests - before, wall_s, cpu_s()? - used))
}
