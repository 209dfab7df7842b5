//! A cache that clients of Redis can use: `cargo run --release --example cache -- 127.0.0.1:6379`.
//!
//! A handler parses requests of the Redis protocol (RESP 2) where they arrived, and appends the
//! answers. Values are in shards, each behind a lock. Commands: PING, ECHO, GET, SET with EX, DEL,
//! MGET, INCR, EXPIRE, INFO.

#[cfg(test)]
mod tests;

use corebeat_reactor::{Config, Exchange, Server};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::str::from_utf8;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Largest number of arguments of a request.
const ARGUMENTS_MAX: usize = 1024;
/// Largest size of an argument in bytes.
const ARGUMENT_MAX: usize = 512 << 10;
/// Number of shards, so that threads seldom wait for each other.
const SHARDS: usize = 64;

fn main() {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:6379".into());
    let listener = TcpListener::bind(&address).map_err(|why| why.to_string());
    let server = listener.and_then(|listener| serve(listener).map_err(|why| why.to_string()));
    match server {
        Ok(_server) => {
            println!("cache: listens at {address}");
            loop {
                std::thread::park();
            }
        }
        Err(why) => {
            eprintln!(
                "cache: cannot serve at '{address}' ({why}): state another address with its port"
            );
            std::process::exit(1);
        }
    }
}

/// Starts the server.
fn serve(listener: TcpListener) -> Result<Server, corebeat_reactor::Error> {
    let store = Arc::new(Store::new());
    Server::start(Config::default(), listener, move || {
        let store = store.clone();
        let mut arguments = Vec::new();
        move |exchange: &mut Exchange<'_>| handle(&store, &mut arguments, exchange)
    })
}

/// Places of the arguments of a request in the input.
type Arguments = Vec<std::ops::Range<usize>>;

/// Answers all complete requests.
fn handle(store: &Store, arguments: &mut Arguments, exchange: &mut Exchange<'_>) {
    loop {
        let input = exchange.input();
        match parse(input, arguments) {
            Ok(None) => return,
            Ok(Some(length)) => {
                let argument = |n: usize| arguments.get(n).map(|place| &input[place.clone()]);
                execute(store, &argument, exchange.output());
                exchange.consume(length);
            }
            Err(why) => {
                error(exchange.output(), why);
                exchange.consume(input.len());
                return exchange.close();
            }
        }
    }
}

/// Finds the arguments of the first request. Returns its length; `None` if it is not complete.
fn parse(input: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, &'static str> {
    arguments.clear();
    let Some((head, mut at)) = line(input, 0)? else { return Ok(None) };
    let Some(count) = head.strip_prefix(b"*") else {
        // An inline request: words in a line.
        for word in head.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
            let start = word.as_ptr().addr() - input.as_ptr().addr();
            arguments.push(start..start + word.len());
        }
        return Ok(Some(at));
    };
    let count =
        number(count).filter(|n: &usize| *n <= ARGUMENTS_MAX).ok_or("invalid multibulk length")?;
    for _ in 0..count {
        let Some((head, start)) = line(input, at)? else { return Ok(None) };
        let size = head.strip_prefix(b"$").ok_or("expected '$'")?;
        let size =
            number(size).filter(|n: &usize| *n <= ARGUMENT_MAX).ok_or("invalid bulk length")?;
        let end = start + size;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => arguments.push(start..end),
            Some(_) => return Err("expected the end of a line"),
        }
        at = end + 2;
    }
    Ok(Some(at))
}

/// Returns the line that begins at `start`, and the place after it.
fn line(input: &[u8], start: usize) -> Result<Option<(&[u8], usize)>, &'static str> {
    let rest = &input[start..];
    match rest.iter().position(|byte| *byte == b'\n') {
        None if rest.len() > ARGUMENT_MAX => Err("too big inline request"),
        None => Ok(None),
        Some(end) => {
            let line = &rest[..end];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), start + end + 1)))
        }
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    from_utf8(text).ok()?.parse().ok()
}

struct Store {
    shards: [Mutex<Shard>; SHARDS],
    hashes: RandomState,
}

#[derive(Default)]
struct Shard(HashMap<Box<[u8]>, Entry>);

struct Entry {
    value: Vec<u8>,
    end: Option<Instant>,
}

impl Store {
    fn new() -> Store {
        Store { shards: [(); SHARDS].map(|()| Mutex::default()), hashes: RandomState::new() }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let shard = self.hashes.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(|e| e.into_inner())
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().unwrap_or_else(|e| e.into_inner()).0.len()).sum()
    }
}

impl Shard {
    /// Returns an entry whose time is not over.
    fn get(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let is_over = |entry: &Entry| entry.end.is_some_and(|end| end <= Instant::now());
        if self.0.get(key).is_some_and(is_over) {
            self.0.remove(key);
        }
        self.0.get_mut(key)
    }
}

/// Executes a request, and appends the answer.
fn execute<'a>(store: &Store, argument: &dyn Fn(usize) -> Option<&'a [u8]>, out: &mut Vec<u8>) {
    let Some(name) = argument(0) else { return };
    let is = |command: &str| name.eq_ignore_ascii_case(command.as_bytes());
    match (argument(1), argument(2), argument(3)) {
        (None, ..) if is("PING") => out.extend_from_slice(b"+PONG\r\n"),
        (Some(text), None, None) if is("ECHO") || is("PING") => bulk(out, text),
        (Some(key), None, None) if is("GET") => get(store, key, out),
        (Some(key), Some(value), option) if is("SET") => {
            let end = match (option, argument(4)) {
                (None, _) => None,
                (Some(ex), Some(seconds)) if ex.eq_ignore_ascii_case(b"EX") => {
                    match number(seconds).and_then(after) {
                        Some(end) => Some(end),
                        None => return error(out, "invalid expire time in 'set' command"),
                    }
                }
                _ => return error(out, "syntax error"),
            };
            store.shard(key).0.insert(key.into(), Entry { value: value.into(), end });
            out.extend_from_slice(b"+OK\r\n");
        }
        (Some(_), ..) if is("DEL") => {
            let keys = (1..).map_while(argument);
            let deleted = keys.filter(|key| store.shard(key).0.remove(*key).is_some()).count();
            integer(out, deleted as i64);
        }
        (Some(_), ..) if is("MGET") => {
            let count = (1..).map_while(argument).count();
            out.extend_from_slice(format!("*{count}\r\n").as_bytes());
            (1..).map_while(argument).for_each(|key| get(store, key, out));
        }
        (Some(key), None, None) if is("INCR") => increment(store, key, out),
        (Some(key), Some(seconds), None) if is("EXPIRE") => {
            let Some(end) = number(seconds).and_then(after) else {
                return error(out, "value is not an integer or out of range");
            };
            let mut shard = store.shard(key);
            let entry = shard.get(key).map(|entry| entry.end = Some(end));
            integer(out, i64::from(entry.is_some()));
        }
        _ if is("INFO") => {
            bulk(out, format!("# Keyspace\r\ndb0:keys={}\r\n", store.len()).as_bytes());
        }
        _ => error(out, "unknown command, or wrong number of arguments"),
    }
}

fn after(seconds: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_secs(seconds))
}

fn get(store: &Store, key: &[u8], out: &mut Vec<u8>) {
    match store.shard(key).get(key) {
        Some(entry) => bulk(out, &entry.value),
        None => out.extend_from_slice(b"$-1\r\n"),
    }
}

fn increment(store: &Store, key: &[u8], out: &mut Vec<u8>) {
    let mut shard = store.shard(key);
    let before = shard.get(key).map_or(Some(0), |entry| number(&entry.value));
    let Some(after) = before.and_then(|before: i64| before.checked_add(1)) else {
        return error(out, "value is not an integer or out of range");
    };
    let value = after.to_string().into_bytes();
    match shard.get(key) {
        Some(entry) => entry.value = value,
        None => drop(shard.0.insert(key.into(), Entry { value, end: None })),
    }
    integer(out, after);
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn integer(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(format!(":{value}\r\n").as_bytes());
}

fn error(out: &mut Vec<u8>, why: &str) {
    out.extend_from_slice(format!("-ERR {why}\r\n").as_bytes());
}
