//! The web server, driven by curl and wrk, and by random requests.

#[path = "../../tests/damage/mod.rs"]
mod damage;

use super::*;
use corebeat_test_group::TestGroup;
use damage::{Words, fuzz, parts, search};
use proptest::prelude::*;
use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{ServerName, UnixTime};
use std::process::Command;

/// A running server, whose tasks end with it.
struct Web {
    _runtime: Runtime,
    address: String,
}

fn start() -> Web {
    start_encrypted(None)
}

fn start_encrypted(tls: Tls) -> Web {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let index = ("/index.html".to_owned(), vec![b'x'; 100_000]);
    let files = Arc::new(HashMap::from([index]));
    let runtime = runtime().unwrap();
    runtime.spawn(move || serve(listener, &files, &tls));
    Web { _runtime: runtime, address }
}

fn requests(web: &Web, requests: &str) -> String {
    let mut stream = std::net::TcpStream::connect(&web.address).unwrap();
    stream.set_read_timeout(Some(IDLE_MAX / 2)).unwrap();
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
fn curl_gets_files_encrypted_by_a_certificate_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("certificate.pem"), path("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = read_certificate(&certificate, &key).unwrap();
    let web = start_encrypted(Some(Arc::new(tls)));
    let port = web.address.rsplit(':').next().unwrap();
    let (json, index) = (path("json"), path("index"));
    // Two requests on one connection.
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let url = |path: &str| format!("https://localhost:{port}{path}");
        let arguments = ["-s", "--max-time", "30", "--cacert", &certificate];
        let urls = ["-w", "%{num_connects} ", &url("/json"), "-o", &json, &url("/"), "-o", &index];
        let Some(text) = client("curl", &[&arguments[..], version, &urls].concat()) else {
            return;
        };
        assert_eq!(text, "1 0 ");
        assert_eq!(std::fs::read(&json).unwrap(), b"{\"hello\":\"world\"}");
        assert_eq!(std::fs::read(&index).unwrap(), vec![b'x'; 100_000]);
    }
    // The error names the file that is wrong.
    let why = |chain: &str, key: &str| read_certificate(chain, key).unwrap_err().to_string();
    assert!(why(&certificate, &certificate).contains(&format!("cannot use {certificate} (")));
    assert!(why("/nonexistent", &key).contains("cannot use /nonexistent ("));
    let other = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let wrong = path("wrong.pem");
    std::fs::write(&wrong, other.signing_key.serialize_pem()).unwrap();
    assert!(why(&certificate, &wrong).contains(&format!("{certificate} with {wrong}")));
}

/// Accepts each certificate.
#[derive(Debug)]
struct Trust(rustls::crypto::CryptoProvider);

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client that reads slowly and leaves the end to the server, with each version of TLS.
#[test]
fn encrypted_answer_reaches_a_slow_client_and_ends_with_a_notice() {
    let web = start_encrypted(Some(Arc::new(make_certificate().unwrap())));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = rustls::crypto::ring::default_provider();
        let config = rustls::ClientConfig::builder_with_protocol_versions(&[version])
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trust(provider)))
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = std::net::TcpStream::connect(&web.address).unwrap();
        socket.set_read_timeout(Some(IDLE_MAX / 2)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut received = Vec::new();
        let mut byte = [0];
        // The read fails with `UnexpectedEof` if the end of the connection has no notice.
        while stream.read(&mut byte).unwrap() == 1 {
            received.push(byte[0]);
        }
        assert!(received.ends_with(&[b'x'; 100_000]), "{} bytes", received.len());
    }
}

#[test]
fn exchange_of_keys_ends_at_its_limit() {
    let tls = Arc::new(make_certificate().unwrap());
    let (mut listener, mut client) = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (TcpListener::from_std(listener).unwrap(), client)
    };
    // The head of a record, of which the rest is missing.
    client.write_all(&[22, 3, 1, 1, 0]).unwrap();
    let mut stream = listener.accept().unwrap();
    let mut connection = ServerConnection::new(tls).unwrap();
    let limit = Duration::from_millis(20);
    let why = exchange_keys(&mut connection, &mut stream, limit).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn curl_distrusts_a_made_certificate_except_on_request() {
    let web = start_encrypted(Some(Arc::new(make_certificate().unwrap())));
    let url = format!("https://{}/json", web.address);
    let Some(text) = client("curl", &["-s", "--max-time", "30", "-k", &url]) else { return };
    assert_eq!(text, "{\"hello\":\"world\"}");
    let group = TestGroup::new();
    let mut curl = Command::new("curl");
    let refused = group.add(curl.args(["-s", "--max-time", "30", &url])).status().unwrap();
    /// The certificate is not valid.
    const DISTRUSTED: i32 = 60;
    assert_eq!(refused.code(), Some(DISTRUSTED));
    // A client without encryption receives no answer, and the server continues.
    let mut stream = std::net::TcpStream::connect(&web.address).unwrap();
    stream.set_read_timeout(Some(IDLE_MAX / 2)).unwrap();
    stream.write_all(b"GET /json HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(client("curl", &["-s", "--max-time", "30", "-k", &url]).unwrap(), text);
}

#[test]
fn wrk_receives_no_error() {
    let web = start();
    let url = format!("http://{}/json", web.address);
    let Some(text) = client("wrk", &["-t1", "-c20", "-d1s", &url]) else { return };
    assert!(text.contains("Requests/sec") && !text.contains("Non-2xx"), "{text}");
    assert!(!text.contains("Socket errors"), "{text}");
}

/// A function such as [`answer_all`].
type AnswerAll = fn(&mut Vec<u8>, &Files, &mut Vec<u8>) -> bool;

/// Returns whether the connection continues after an input, of which the server receives a part at
/// a time, and the answers.
fn answer_parts(
    answer_all: AnswerAll,
    files: &Files,
    input: &[u8],
    parts: &[usize],
) -> (bool, Vec<u8>) {
    let (mut received, mut answers, mut end) = (Vec::new(), Vec::new(), 0);
    let mut continues = true;
    for part in parts.iter().cycle() {
        if end == input.len() || !continues {
            break;
        }
        let next = input.len().min(end + part);
        received.extend_from_slice(&input[end..next]);
        end = next;
        continues = answer_all(&mut received, files, &mut answers);
    }
    (continues, answers)
}

const WORDS: Words = Words {
    valid: &[
        &[b"GET", b" ", b"/json", b" ", b"HTTP/1.1", b"\r\n", b"\r\n"],
        &[
            b"GET",
            b" ",
            b"/",
            b"?",
            b"q",
            b" ",
            b"HTTP/1.0",
            b"\r\n",
            b"Connection",
            b":",
            b" ",
            b"keep-alive",
            b"\r\n",
            b"\r\n",
        ],
        &[
            b"GET",
            b" ",
            b"/x",
            b" ",
            b"HTTP/1.1",
            b"\r\n",
            b"Host",
            b":",
            b" ",
            b"h",
            b"\r\n",
            b"Content-Length",
            b":",
            b"0",
            b"\r\n",
            b"\r\n",
        ],
        &[b"GET", b" ", b"/json", b" ", b"HTTP/1.1", b"\n", b"\n"],
    ],
    odd: &[
        b"\r",
        b"\n",
        b"\t",
        b"",
        b"\0",
        b"\xff",
        b"Connection: close\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 1\r\n",
        b"POST",
        b"HTTP/2.0",
        b"a: b\r\n",
        b"/index.html",
        b"/../x",
        // Beyond the largest size of a head, alone or with other words.
        &[b'x'; HEAD_MAX],
        b"\"",
        b";",
    ],
};

/// Checks that the answers do not depend on the parts in which an input arrives.
fn check(
    answer_all: AnswerAll,
    files: &Files,
    input: &[u8],
    random: &mut fastrand::Rng,
) -> Result<bool, String> {
    let whole = answer_parts(answer_all, files, input, &[input.len().max(1)]);
    let mut in_parts = parts(random);
    if input.len() > HEAD_MAX / 2 {
        // Few parts, so that a long input takes no more time than others.
        in_parts.iter_mut().for_each(|part| *part *= 50);
    }
    let other = answer_parts(answer_all, files, input, &in_parts);
    match other == whole {
        true => Ok(whole.0),
        false => Err(format!("other answers in parts of {in_parts:?}")),
    }
}

fn some_files() -> Files {
    Arc::new(HashMap::from([("/index.html".to_owned(), b"index".to_vec())]))
}

#[test]
fn damaged_requests_are_answered_alike_in_all_parts() {
    let files = some_files();
    fuzz("HTTP", &WORDS, |input, random| check(answer_all, &files, input, random));
}

/// A server that drops the rest of the input with an answered request.
fn answer_and_forget(input: &mut Vec<u8>, files: &Files, output: &mut Vec<u8>) -> bool {
    let before = output.len();
    let continues = answer_all(input, files, output);
    if output.len() > before {
        input.clear();
    }
    continues
}

/// A server that accepts a head of any size if it arrives at once.
fn answer_without_limit(input: &mut Vec<u8>, files: &Files, output: &mut Vec<u8>) -> bool {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let whole = std::mem::take(input);
    match request.parse(&whole) {
        Ok(Status::Complete(length)) if length > HEAD_MAX => {
            input.extend_from_slice(&whole[length..]);
            answer(&request, files, output) && answer_without_limit(input, files, output)
        }
        _ => {
            *input = whole;
            answer_all(input, files, output)
        }
    }
}

#[test]
fn faults_of_a_server_are_found() {
    let files = some_files();
    for fault in [answer_and_forget as AnswerAll, answer_without_limit] {
        let found = search(&WORDS, |input, random| check(fault, &files, input, random));
        assert!(found.is_err());
    }
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
        let (files, input) = (Arc::new(HashMap::new()), lines.concat().into_bytes());
        let whole = answer_parts(answer_all, &files, &input, &[input.len().max(1)]);
        prop_assert_eq!(whole, answer_parts(answer_all, &files, &input, &parts));
    }
}
