//! The examples of `corebeat-reactor` beside the servers for whose clients they are: `cache` beside
//! Redis, and `web` beside nginx. The clients are `redis-benchmark` and `wrk`.

use super::several::{self, Quantity, Subject};
use crate::Bench;
use crate::apart::{RUN_MAX, thread_counts};
use crate::child::Running;
use crate::corebeat::build_example;
use crate::line::cpus;
use crate::program::threads;
use crate::row::Better;
use crate::session::Session;
use crate::tool::{NGINX, REDIS_BENCHMARK, REDIS_SERVER, WRK};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const CACHE: Bench = Bench {
    name: "reactor.cache",
    summary: "CPU time and rate of a cache for a request of redis-benchmark, with 50 connections",
    peers: &["redis-server"],
    tools: &[REDIS_BENCHMARK, REDIS_SERVER],
    cases: cache_cases,
    run: cache,
};

pub(super) const WEB: Bench = Bench {
    name: "reactor.web",
    summary: "CPU time and rate of a web server for a request of wrk, with 64 connections",
    peers: &["nginx"],
    tools: &[WRK, NGINX],
    cases: |_| several::names(WEB_CASE, &quantities()),
    run: web,
};

/// Size of a value of the cache, and the beginning of the answer with it.
const VALUE_BYTES: usize = 64;
/// Number of different keys.
const KEYS: &str = "100";
/// Key of which the cache has a value after the first requests.
const KEY: &str = "key:000000000000";
/// Time of a server until it accepts connections.
const START_MAX: Duration = Duration::from_secs(30);

const WEB_CASE: &str = "1 KiB, 1 thread";
const PAGE_BYTES: usize = 1024;

/// Requests of a load, each a command of Redis.
struct Requests {
    command: &'static str,
    /// Number of requests that a client sends before it waits for an answer.
    depth: usize,
    threads: usize,
}

impl Requests {
    fn all(session: &Session) -> impl Iterator<Item = Requests> {
        thread_counts(session).flat_map(|threads| {
            ["GET", "SET"]
                .into_iter()
                .flat_map(move |command| [1, 16].map(|depth| Requests { command, depth, threads }))
        })
    }

    fn name(&self) -> String {
        format!("{}, -P {}, {}", self.command, self.depth, threads(self.threads))
    }
}

fn quantities() -> [Quantity; 2] {
    [
        Quantity { name: "CPU".into(), unit: "ns/request", better: Better::Lower },
        Quantity { name: "rate".into(), unit: "requests/s", better: Better::Higher },
    ]
}

/// Returns the command of a program on the first CPU for one thread, and on all for more.
pub(super) fn pinned(program: impl AsRef<OsStr>, threads: usize) -> Command {
    on(program, 0, threads)
}

fn on(program: impl AsRef<OsStr>, cpu: usize, threads: usize) -> Command {
    match (cpus().get(cpu), threads) {
        (Some(cpu), 1) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string()]).arg(program);
            command
        }
        _ => Command::new(program),
    }
}

fn cache_cases(session: &Session) -> Vec<String> {
    Requests::all(session).flat_map(|r| several::names(&r.name(), &quantities())).collect()
}

fn cache(session: &Session) -> Result<(), String> {
    if !session.has(REDIS_BENCHMARK) {
        return Ok(());
    }
    let example = build_example("corebeat-reactor", "cache")?;
    for requests in Requests::all(session) {
        let (example, requests) = (&example, &requests);
        let mut subjects = vec![Subject {
            name: "corebeat".into(),
            run: Box::new(move || {
                let server = |port: u16| {
                    let mut command = pinned(example, requests.threads);
                    command.arg(format!("127.0.0.1:{port}"));
                    command
                };
                ask_cache(session, requests, server)
            }),
        }];
        if session.has(REDIS_SERVER) {
            let run = move || ask_cache(session, requests, |port| redis(session, requests, port));
            subjects.push(Subject { name: "redis-server".into(), run: Box::new(run) });
        }
        several::measure(session, "reactor.cache", &requests.name(), &quantities(), subjects);
    }
    Ok(())
}

/// Returns the command of a Redis server that stores nothing on disk.
fn redis(session: &Session, requests: &Requests, port: u16) -> Command {
    let mut command = pinned(REDIS_SERVER.program, requests.threads);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--io-threads", &requests.threads.to_string()]);
    command.arg("--dir").arg(session.folder());
    command
}

/// Starts a server, and returns it and its port when it accepts connections.
fn start(command: impl Fn(u16) -> Command) -> Result<(Running, u16), String> {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.map_err(|e| format!("cannot find a free port: {e}"))?.port();
    let server = Running::start(command(port), false)?;
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        // Also the way by which a server that has ended is reported.
        server.cpu_s()?;
        if begin.elapsed() > START_MAX {
            return Err(format!("the server did not start within {START_MAX:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((server, port))
}

/// Runs a cache once, and returns its CPU time for a request and its rate.
fn ask_cache(
    session: &Session,
    requests: &Requests,
    command: impl Fn(u16) -> Command,
) -> Result<Vec<f64>, String> {
    let (server, port) = start(command)?;
    let ask = |command: &str, depth: usize, count: usize| {
        let mut client = on(REDIS_BENCHMARK.program, 1, requests.threads);
        client.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "50", "-r", KEYS, "--csv"]);
        client.args(["-P", &depth.to_string(), "-n", &count.to_string()]);
        client.args(["-d", &VALUE_BYTES.to_string(), "-t", &command.to_lowercase()]);
        if requests.threads > 1 {
            client.args(["--threads", &requests.threads.to_string()]);
        }
        let ended = Running::start(client, false)?.wait(RUN_MAX)?;
        ended.check()?;
        rate(&ended.stdout, command)
    };
    // So many that each key is there.
    ask("SET", 16, 5000)?;
    let count = if session.quick { 1000 } else { 60_000 } * requests.depth;
    let before = server.cpu_s()?;
    let rate = ask(requests.command, requests.depth, count)?;
    let cpu_s = server.cpu_s()? - before;
    check_value(port)?;
    Ok(vec![cpu_s * 1e9 / count as f64, rate])
}

/// Returns the requests per second in the output of `redis-benchmark`.
fn rate(output: &str, command: &str) -> Result<f64, String> {
    let line = output.lines().find(|line| line.starts_with(&format!("\"{command}\"")));
    let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    rate.ok_or_else(|| format!("redis-benchmark printed no rate: {output}"))
}

/// Checks that the cache has a value.
fn check_value(port: u16) -> Result<(), String> {
    let get = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(START_MAX))?;
        write!(stream, "*2\r\n$3\r\nGET\r\n${}\r\n{KEY}\r\n", KEY.len())?;
        let mut answer = vec![0; format!("${VALUE_BYTES}\r\n\r\n").len() + VALUE_BYTES];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let answer = get().map_err(|e| format!("cannot read a value: {e}"))?;
    match answer.starts_with(format!("${VALUE_BYTES}\r\n").as_bytes()) {
        true => Ok(()),
        false => Err(format!("wrong value: {}", String::from_utf8_lossy(&answer))),
    }
}

fn web(session: &Session) -> Result<(), String> {
    if !session.has(WRK) {
        return Ok(());
    }
    let folder = session.folder().join("web");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("page.txt"), [b'x'; PAGE_BYTES]));
    written.map_err(|e| format!("cannot write the page: {e}"))?;
    let (example, folder) = (build_example("corebeat-reactor", "web")?, folder.as_path());
    let server = move |port: u16| {
        let mut command = pinned(&example, 1);
        command.arg(format!("127.0.0.1:{port}")).arg(folder);
        command
    };
    let run = Box::new(move || ask_web(session, &server));
    let mut subjects = vec![Subject { name: "corebeat".into(), run }];
    if session.has(NGINX) {
        let settings = session.folder().join("nginx.conf");
        let run = move || ask_web(session, |port| nginx(&settings, folder, port));
        subjects.push(Subject { name: "nginx".into(), run: Box::new(run) });
    }
    several::measure(session, "reactor.web", WEB_CASE, &quantities(), subjects);
    Ok(())
}

/// Returns the command of nginx as one process, which serves a folder. An error of its settings is
/// one of its start.
fn nginx(settings: &Path, folder: &Path, port: u16) -> Command {
    let text = format!(
        "daemon off; master_process off; pid {folder}.pid; error_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; sendfile on;\n\
         open_file_cache max=10;\n\
         server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n",
        folder = folder.display()
    );
    let _ = std::fs::write(settings, text);
    let mut command = pinned(NGINX.program, 1);
    command.args(["-e", "stderr", "-c"]).arg(settings);
    command
}

/// Runs a web server once, and returns its CPU time for a request and its rate.
fn ask_web(session: &Session, command: impl Fn(u16) -> Command) -> Result<Vec<f64>, String> {
    let (server, port) = start(command)?;
    let mut client = on(WRK.program, 1, 1);
    client.args(["-t", "1", "-c", if session.quick { "4" } else { "64" }]);
    client.args(["-d", if session.quick { "1s" } else { "2s" }]);
    client.arg(format!("http://127.0.0.1:{port}/page.txt"));
    let before = server.cpu_s()?;
    let ended = Running::start(client, false)?.wait(RUN_MAX)?;
    let cpu_s = server.cpu_s()? - before;
    ended.check()?;
    let text = &ended.stdout;
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return Err(format!("wrk received errors: {text}"));
    }
    let line = text.lines().find(|line| line.contains(" requests in "));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    let rate = line.and_then(|rate| rate.trim().parse::<f64>().ok());
    match (count, rate) {
        (Some(count), Some(rate)) if count > 0.0 => Ok(vec![cpu_s * 1e9 / count, rate]),
        _ => Err(format!("wrk printed no numbers: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_found_in_the_line_of_its_command() {
        let text = "\"test\",\"rps\",\"avg\"\n\"SET\",\"5.50\",\"0.1\"\n\"GET\",\"7.25\",\"0.1\"\n";
        assert_eq!(rate(text, "GET"), Ok(7.25));
        assert!(rate(text, "DEL").is_err());
    }
}
