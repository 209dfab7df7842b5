//! Probes of servers. A process records one trace at a time.

mod client;

use client::{MINUTE, connect, echo, mechanisms, start};
use corebeat_probe::{Call, Calls, record, switch};
use corebeat_reactor::{Config, Pattern};
use corebeat_trace::Trace;
use std::io::{Read, Write};
use std::net::Shutdown;

const REQUESTS: usize = 20;

/// Returns the calls of a server that has answered [`REQUESTS`].
fn calls(config: &Config) -> Calls {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.cbt");
    let trace = Trace::create(&path).unwrap();
    record(&trace).unwrap();
    assert_eq!(switch("corebeat_reactor::*", true).unwrap(), 7);
    let (server, address) = start(config, || echo);
    let mut stream = connect(address);
    for _ in 0..REQUESTS {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
    }
    // Until the server has closed the connection.
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    server.stop(MINUTE);
    switch("corebeat_reactor::*", false).unwrap();
    trace.finish().unwrap();
    Calls::read(std::fs::File::open(&path).unwrap()).unwrap()
}

#[test]
fn probes_follow_a_request() {
    for (pattern, mechanism) in
        Pattern::ALL.into_iter().flat_map(|p| mechanisms().map(move |m| (p, m)))
    {
        let config = Config { pattern, mechanism, threads: Some(2), ..Config::default() };
        let calls = calls(&config);
        let function = |call: &Call| calls.operation(call).function();
        let parent = |call: &Call| {
            call.parent.map(|parent| function(&calls.calls()[parent as usize])).unwrap_or("")
        };
        let count = |name: &str, of: &str| {
            calls.calls().iter().filter(|c| function(c) == name && parent(c) == of).count()
        };
        let of_turn = if pattern == Pattern::HalfSyncHalfAsync { "queue" } else { "" };
        // A turn also handles reports that arrive meanwhile.
        assert!(count("turn", of_turn) > 0, "{pattern:?} {mechanism:?}");
        assert_eq!(count("turn", if of_turn.is_empty() { "queue" } else { "" }), 0);
        // The last call finds the end of the data.
        assert_eq!(count("process", "turn"), REQUESTS + 1, "{pattern:?} {mechanism:?}");
        assert_eq!(count("send", "turn"), REQUESTS);
        assert!(count("receive", "turn") > REQUESTS);
        assert!(count("rearm", "turn") > 0);
        assert!(count("sense", "") >= 1);
    }
}
