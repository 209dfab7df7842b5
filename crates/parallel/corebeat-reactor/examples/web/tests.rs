//! The web server, driven by curl and wrk, and by random requests.

use super::*;
use corebeat_test_group::TestGroup;
use proptest::prelude::*;
use std::process::Command;

/// A running server, whose tasks end with it.
struct Web {
    _runtime: Runtime,
    address: String,
}

fn start() -> Web {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let index = ("/index.html".to_owned(), vec![b'x'; 100_000]);
    let files = Arc::new(HashMap::from([index]));
    let runtime = attach(Runtime::builder()).build().unwrap();
    runtime.spawn(move || serve(listener, &files));
    Web { _runtime: runtime, address }
}

fn requests(web: &Web, requests: &str) -> String {
    let mut stream = std::net::TcpStream::connect(&web.address).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

#[test]
fn pipelined_requests_are_answered_until_one_closes_the_connection() {
    let web = start();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let last = "GET /json?q HTTP/1.1\r\nConnection: close\r\n\r\n";
    let text = requests(&web, &[&get("/none"), &get("/json"), last].concat());
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2);
    assert!(text.starts_with("HTTP/1.1 404") && text.ends_with("{\"hello\":\"world\"}"));
    assert!(requests(&web, "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx").contains("405"));
    assert!(requests(&web, "no request\r\n\r\n").contains("400"));
    assert!(requests(&web, &"x".repeat(HEAD_MAX)).contains("431"));
}

/// Runs a client and returns what it printed; `None`, with a line, if it is missing.
fn client(name: &str, arguments: &[&str]) -> Option<String> {
    let group = TestGroup::new();
    let mut command = Command::new(name);
    let output = match group.add(command.args(arguments)).output() {
        Ok(output) => output,
        Err(_) => {
            eprintln!("skipped: {name} is not installed (apt-get install {name})");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn curl_gets_a_file_and_json() {
    let web = start();
    let url = |path: &str| format!("http://{}{path}", web.address);
    // One connection for both files.
    let arguments = ["-s", "--max-time", "30", "-w", "%{num_connects} "];
    let urls = [&url("/"), "-o", "/dev/null", &url("/json")];
    let Some(text) = client("curl", &[&arguments[..], &urls].concat()) else { return };
    assert_eq!(text, "1 {\"hello\":\"world\"}0 ");
}

#[test]
fn wrk_receives_no_error() {
    let web = start();
    let url = format!("http://{}/json", web.address);
    let Some(text) = client("wrk", &["-t1", "-c20", "-d1s", &url]) else { return };
    assert!(text.contains("Requests/sec") && !text.contains("Non-2xx"), "{text}");
    assert!(!text.contains("Socket errors"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_requests_have_the_same_answers_in_parts(
        lines in proptest::collection::vec(
            prop_oneof![
                4 => Just("GET /json HTTP/1.1\r\n\r\n"),
                2 => Just("GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
                1 => Just("GET / HTTP/1.0\r\n"),
                1 => Just("\r\n"),
                1 => Just("\u{0}garbage"),
            ],
            0..8,
        ),
        parts in proptest::collection::vec(1..40_usize, 1..6),
    ) {
        let files = Arc::new(HashMap::new());
        let input = lines.concat().into_bytes();
        let (mut whole, mut whole_output) = (input.clone(), Vec::new());
        let continues = answer_all(&mut whole, &files, &mut whole_output);
        let (mut part_input, mut part_output, mut end) = (Vec::new(), Vec::new(), 0);
        let mut part_continues = true;
        for part in parts.iter().cycle() {
            if end == input.len() || !part_continues {
                break;
            }
            let next = input.len().min(end + part);
            part_input.extend_from_slice(&input[end..next]);
            end = next;
            part_continues = answer_all(&mut part_input, &files, &mut part_output);
        }
        prop_assert_eq!((continues, whole_output), (part_continues, part_output));
    }
}
