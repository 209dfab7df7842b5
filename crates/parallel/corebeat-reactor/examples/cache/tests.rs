//! The cache, driven by the clients of Redis and by random requests.

#[path = "../../tests/damage/mod.rs"]
mod damage;

use super::*;
use corebeat_test_group::TestGroup;
use damage::{Words, fuzz, parts, search};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

fn start() -> (Server, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (serve(listener).unwrap(), port)
}

/// Sends requests, and returns the answers until the server has answered all.
fn answers(port: u16, requests: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(requests).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_server, port) = start();
    let requests =
        b"PING\r\n*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n*3\r\n$3\r\nSET\r\n$1\r\nn\r\n$1\r\n41\
        \r\n";
    assert_eq!(
        answers(port, requests),
        "+PONG\r\n$5\r\nhello\r\n-ERR expected the end of a line\r\n"
    );
    let requests = b"SET n 41\nINCR n\nGET n\nMGET n none\nDEL n none\nGET n\nINCR t\nEXPIRE t 0\n\
        GET t\nSET t x EX 100\nINCR t\nEXPIRE none 1\nSET t x PX 1\nINFO\nNONE\n";
    let not_integer = "-ERR value is not an integer or out of range\r\n";
    let expected = [
        "+OK\r\n:42\r\n$2\r\n42\r\n*2\r\n$2\r\n42\r\n$-1\r\n:1\r\n$-1\r\n:1\r\n:1\r\n$-1\r\n+OK\r\n",
        not_integer,
        ":0\r\n-ERR syntax error\r\n$24\r\n# Keyspace\r\ndb0:keys=1\r\n\r\n",
        "-ERR unknown command, or wrong number of arguments\r\n",
    ];
    assert_eq!(answers(port, requests), expected.concat());
}

/// Starts a client, or prints that it is missing.
fn client(name: &str, port: u16, arguments: &[&str]) -> Option<String> {
    let group = TestGroup::new();
    let mut command = Command::new(name);
    let port = port.to_string();
    command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments);
    let output = match group.add(&mut command).output() {
        Ok(output) => output,
        Err(_) => {
            eprintln!("skipped: {name} is not installed (apt-get install redis-tools)");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn redis_cli_uses_the_cache() {
    let (_server, port) = start();
    let run = |arguments: &[&str]| client("redis-cli", port, arguments);
    let Some(answer) = run(&["SET", "key", "some value", "EX", "100"]) else { return };
    assert_eq!(answer, "OK\n");
    assert_eq!(run(&["GET", "key"]).unwrap(), "some value\n");
    assert_eq!(run(&["INCR", "number"]).unwrap(), "1\n");
    assert_eq!(run(&["MGET", "number", "key"]).unwrap(), "1\nsome value\n");
    assert_eq!(run(&["DEL", "number", "key"]).unwrap(), "2\n");
}

#[test]
fn redis_benchmark_completes_all_requests() {
    let (server, port) = start();
    for pipeline in ["1", "16"] {
        let tests = ["-t", "ping,set,get,incr"];
        let load = ["-n", "2000", "-c", "50", "-P", pipeline, "--csv"];
        let Some(text) = client("redis-benchmark", port, &[&tests[..], &load].concat()) else {
            return;
        };
        for name in ["PING_INLINE", "SET", "GET", "INCR"] {
            assert!(text.contains(&format!("\"{name}\"")), "{text}");
        }
    }
    assert!(server.stats().accepted >= 400);
}

/// Requests of random arguments, and random bytes.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let name =
        prop_oneof!["PING", "GET", "SET", "DEL", "INCR", "MGET", "EXPIRE", "ECHO", "[A-Z]{1,4}"];
    let argument = proptest::collection::vec(any::<u8>(), 0..6);
    let valid = (name, proptest::collection::vec(argument, 0..5)).prop_map(|(name, arguments)| {
        let mut request = format!("*{}\r\n", arguments.len() + 1).into_bytes();
        bulk(&mut request, name.as_bytes());
        arguments.iter().for_each(|argument| bulk(&mut request, argument));
        request
    });
    prop_oneof![8 => valid, 1 => proptest::collection::vec(any::<u8>(), 0..40), 1 => "[*$0-9\r\n]{0,30}".prop_map(String::into_bytes)]
}

/// A function such as [`parse`].
type Parse = fn(&[u8], &mut Arguments) -> Result<Option<usize>, &'static str>;

/// Returns the answers to the input, of which the server receives a part at a time, and whether all
/// of it was consumed.
fn handle_parts(parse: Parse, input: &[u8], parts: &[usize]) -> (Vec<u8>, bool) {
    let store = Store::new();
    let (mut arguments, mut out) = (Vec::new(), Vec::new());
    let (mut begin, mut end) = (0, 0);
    for part in parts.iter().cycle() {
        end = input.len().min(end + part);
        loop {
            match parse(&input[begin..end], &mut arguments) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let input = &input[begin..end];
                    let argument = |n| {
                        arguments.get(n).map(|place: &std::ops::Range<_>| &input[place.clone()])
                    };
                    execute(&store, &argument, &mut out);
                    begin += length;
                }
                Err(why) => {
                    error(&mut out, why);
                    return (out, false);
                }
            }
        }
        if end == input.len() {
            break;
        }
    }
    (out, begin == input.len())
}

const WORDS: Words = Words {
    valid: &[
        &[b"PING", b"\r\n"],
        &[b"SET", b" ", b"n", b" ", b"41", b" ", b"EX", b" ", b"1000", b"\n"],
        &[b"*", b"2", b"\r\n", b"$", b"4", b"\r\n", b"INCR", b"\r\n", b"$1\r\n", b"n", b"\r\n"],
        &[
            b"*", b"3", b"\r\n", b"$", b"3", b"\r\n", b"SET", b"\r\n", b"$1\r\n", b"k", b"\r\n",
            b"$", b"0", b"\r\n", b"\r\n",
        ],
        &[
            b"*", b"4", b"\r\n", b"$", b"4", b"\r\n", b"MGET", b"\r\n", b"$1\r\n", b"k", b"\r\n",
            b"$1\r\n", b"n", b"\r\n", b"$", b"2", b"\r\n", b"\xff\n", b"\r\n",
        ],
        &[b"EXPIRE", b" ", b"n", b" ", b"0", b"\r\n"],
        &[b"DEL", b" ", b"n", b" ", b"k", b"\r\n", b"INFO", b"\r\n"],
        &[b"*", b"0", b"\r\n"],
    ],
    odd: &[
        b"-1",
        b"+2",
        b"1025",
        b"524289",
        b"18446744073709551615",
        b"18446744073709551616",
        b"9223372036854775807",
        b"\r",
        b"\n",
        b"",
        b"\0",
        b"\xc3",
        b"*",
        b"$",
        b"ECHO",
        b"GET",
    ],
};

/// Longest time in which no entry expires: those of the inputs last for 0 s or 1 s and longer.
const STEADY: Duration = Duration::from_millis(500);

/// Checks that the answers do not depend on the parts in which an input arrives.
fn check(parse: Parse, input: &[u8], random: &mut fastrand::Rng) -> Result<bool, String> {
    let begin = Instant::now();
    let (answers, is_whole) = handle_parts(parse, input, &[input.len().max(1)]);
    let in_parts = parts(random);
    let other = handle_parts(parse, input, &in_parts);
    if other != (answers, is_whole) && begin.elapsed() < STEADY {
        return Err(format!("other answers in parts of {in_parts:?}"));
    }
    Ok(is_whole)
}

#[test]
fn damaged_requests_are_answered_alike_in_all_parts() {
    fuzz("RESP", &WORDS, |input, random| check(parse, input, random));
}

/// A parser that takes a line for complete before its last byte has arrived.
fn parse_early(input: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, &'static str> {
    let length = parse_beyond(input, arguments)?;
    Ok(length.map(|length| length.min(input.len())))
}

/// A parser that uses a byte behind the input.
fn parse_beyond(input: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, &'static str> {
    match input.ends_with(b"\r") {
        true => parse(&[input, b"\n"].concat(), arguments),
        false => parse(input, arguments),
    }
}

#[test]
fn faults_of_a_parser_are_found() {
    for planted in [parse_early as Parse, parse_beyond] {
        let found = search(&WORDS, |input, random| check(planted, input, random));
        assert!(found.is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_requests_have_the_same_answers_in_parts(
        requests in proptest::collection::vec(request(), 0..8),
        parts in proptest::collection::vec(1..30_usize, 1..6),
    ) {
        let input = requests.concat();
        let whole = handle_parts(parse, &input, &[input.len().max(1)]);
        prop_assert_eq!(whole, handle_parts(parse, &input, &parts));
    }
}
