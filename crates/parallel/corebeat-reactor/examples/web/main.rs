//! A web server: `cargo run --release --example web -- 127.0.0.1:8080 FOLDER`. With the further
//! argument `tls` it makes a certificate and serves HTTPS; with `CERTIFICATE KEY`, two files in the
//! format PEM, it uses these.
//!
//! Each connection is a stackful task, which reads requests with `httparse`, and answers them as
//! they come (HTTP/1.1 with keep-alive and pipelining). `rustls` encrypts a connection by its
//! `StreamOwned`, which reads and writes as the stream does. Routes: the files of a folder, which
//! are read at the start, and `/json`.

#[cfg(test)]
mod tests;

use corebeat_lpel::{Runtime, spawn};
use corebeat_reactor::{TcpListener, TcpStream, attach};
use httparse::{EMPTY_HEADER, Request, Status};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest size of the head of a request in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Largest number of headers of a request.
const HEADERS_MAX: usize = 64;
/// Time for which a connection may be idle.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Size of the stack of a task. The system provides the memory that is used, which is more during
/// the exchange of keys.
const STACK_BYTES: usize = 256 << 10;

/// Files by the path of the request.
type Files = Arc<HashMap<String, Vec<u8>>>;
/// Certificate and key; `None` for connections without encryption.
type Tls = Option<Arc<ServerConfig>>;
type AnyError = Box<dyn std::error::Error>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let folder = arguments.next().unwrap_or(".".into());
    let run = |certificate: Option<String>, key: Option<String>| -> Result<(), AnyError> {
        let tls = match (certificate, key) {
            (None, _) => None,
            (Some(made), None) if made == "tls" => Some(Arc::new(make_certificate()?)),
            (Some(certificate), Some(key)) => Some(Arc::new(read_certificate(&certificate, &key)?)),
            (Some(_), None) => return Err("write 'tls', or the files CERTIFICATE KEY".into()),
        };
        let files = read_files(Path::new(&folder))
            .map_err(|why| format!("cannot read {folder} ({why}): choose another folder"))?;
        let files = Arc::new(files);
        let listener = std::net::TcpListener::bind(&address)
            .map_err(|why| format!("cannot listen at {address} ({why}): choose another address"))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        println!("web: serves {} files at {scheme}://{address}", files.len());
        runtime()?.run(move || serve(listener, &files, &tls))??;
        Ok(())
    };
    if let Err(why) = run(arguments.next(), arguments.next()) {
        eprintln!("web: {why}");
        std::process::exit(1);
    }
}

fn runtime() -> Result<Runtime, AnyError> {
    Ok(attach(Runtime::builder().stack_size(STACK_BYTES)).build()?)
}

/// Makes a certificate for this host, signed by its own key: clients trust it on request only.
fn make_certificate() -> Result<ServerConfig, AnyError> {
    let made = rcgen::generate_simple_self_signed(["localhost".into(), "127.0.0.1".into()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    encryption(vec![made.cert.into()], key)
}

fn read_certificate(certificate: &str, key: &str) -> Result<ServerConfig, AnyError> {
    let wrong = |file: &str, why: &dyn std::fmt::Display| {
        format!("cannot use {file} ({why}): name a certificate and its key in the format PEM")
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|why| wrong(certificate, &why))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|why| wrong(key, &why))?;
    encryption(chain, secret)
        .map_err(|why| wrong(&format!("{certificate} with {key}"), &why).into())
}

fn encryption(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, AnyError> {
    Ok(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?)
}

/// Reads the files of a folder, without those of its folders.
fn read_files(folder: &Path) -> io::Result<HashMap<String, Vec<u8>>> {
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let name = format!("/{}", entry.file_name().to_string_lossy());
            files.insert(name, std::fs::read(entry.path())?);
        }
    }
    Ok(files)
}

/// Accepts connections, and serves each by a task, until the caller is cancelled.
fn serve(listener: std::net::TcpListener, files: &Files, tls: &Tls) -> io::Result<()> {
    let mut listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept() {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(IDLE_MAX));
                stream.set_write_timeout(Some(IDLE_MAX));
                let (files, tls) = (files.clone(), tls.clone());
                // A connection that fails ends alone.
                spawn(move || match tls {
                    None => talk(&mut stream, &files),
                    Some(tls) => talk_encrypted(stream, tls, &files),
                });
            }
            // The call has waited, so that this loop does not spin.
            Err(why) => eprintln!("web: cannot accept a connection ({why}): tries again"),
        }
    }
}

/// Answers the requests of an encrypted connection. A peer that reads nothing may delay its end by
/// twice the limit: `StreamOwned` reports bytes as written that it could not send.
fn talk_encrypted(stream: TcpStream, tls: Arc<ServerConfig>, files: &Files) -> io::Result<()> {
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let exchanged = exchange_keys(&mut stream.conn, &mut stream.sock, IDLE_MAX);
    let result = exchanged.and_then(|()| talk(&mut stream, files));
    // Without this message, the client could not distinguish the end from an attack.
    stream.conn.send_close_notify();
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock)?;
    }
    result
}

/// Exchanges the keys of a connection within a time, also if the peer sends a byte at a time.
fn exchange_keys(
    connection: &mut ServerConnection,
    stream: &mut TcpStream,
    limit: Duration,
) -> io::Result<()> {
    let begin = Instant::now();
    while connection.is_handshaking() {
        if connection.wants_write() {
            connection.write_tls(stream)?;
            continue;
        }
        let left = limit.checked_sub(begin.elapsed()).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left));
        if connection.read_tls(stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        connection.process_new_packets().map_err(io::Error::other)?;
    }
    stream.set_read_timeout(Some(IDLE_MAX));
    Ok(())
}

/// Answers the requests of a connection.
fn talk(stream: &mut (impl Read + Write), files: &Files) -> io::Result<()> {
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut block = vec![0; HEAD_MAX];
    loop {
        let read = stream.read(&mut block)?;
        if read == 0 {
            return Ok(());
        }
        input.extend_from_slice(&block[..read]);
        let continues = answer_all(&mut input, files, &mut output);
        stream.write_all(&output)?;
        stream.flush()?;
        output.clear();
        if !continues {
            return Ok(());
        }
    }
}

/// Answers all complete requests of the input, and removes them. Returns whether the connection
/// continues.
fn answer_all(input: &mut Vec<u8>, files: &Files, output: &mut Vec<u8>) -> bool {
    let mut begin = 0;
    let continues = loop {
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        // The rest may be another request. The answers must not depend on how much has arrived.
        let head = &input[begin..][..HEAD_MAX.min(input.len() - begin)];
        match request.parse(head) {
            Ok(Status::Complete(length)) => {
                begin += length;
                if !answer(&request, files, output) {
                    break false;
                }
            }
            Ok(Status::Partial) if head.len() < HEAD_MAX => break true,
            Ok(Status::Partial) => {
                respond(output, "431 Request Header Fields Too Large", "text/plain", b"", false);
                break false;
            }
            Err(_) => {
                respond(output, "400 Bad Request", "text/plain", b"", false);
                break false;
            }
        }
    };
    input.drain(..begin);
    continues
}

/// Answers a request. Returns whether the connection continues.
fn answer(request: &Request<'_, '_>, files: &Files, output: &mut Vec<u8>) -> bool {
    let header = |name: &str| {
        request.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    };
    let is_kept = match header("Connection") {
        Some(value) => !value.eq_ignore_ascii_case(b"close"),
        None => request.version == Some(1),
    };
    let has_body = header("Transfer-Encoding").is_some()
        || header("Content-Length").is_some_and(|length| length != b"0");
    if request.method != Some("GET") || has_body {
        // The connection ends, because the body would be read as the next request.
        respond(output, "405 Method Not Allowed", "text/plain", b"", false);
        return false;
    }
    let path = request.path.unwrap_or("/").split('?').next().unwrap_or("/");
    let path = if path == "/" { "/index.html" } else { path };
    match (path, files.get(path)) {
        ("/json", _) => {
            respond(output, "200 OK", "application/json", b"{\"hello\":\"world\"}", is_kept);
        }
        (_, Some(content)) => respond(output, "200 OK", kind(path), content, is_kept),
        (_, None) => respond(output, "404 Not Found", "text/plain", b"not found", is_kept),
    }
    is_kept
}

fn kind(path: &str) -> &'static str {
    match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn respond(output: &mut Vec<u8>, status: &str, kind: &str, content: &[u8], is_kept: bool) {
    let connection = if is_kept { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: {connection}\r\n\r\n",
        content.len()
    );
    output.extend_from_slice(head.as_bytes());
    output.extend_from_slice(content);
}
