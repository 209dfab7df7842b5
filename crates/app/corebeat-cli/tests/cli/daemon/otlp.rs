//! The metrics that the daemon sends to a collector.

use super::{FAST, Place};
use crate::{Running, assert_refused, command, signal, until};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

#[test]
fn collector_receives_the_metrics_of_the_page() {
    let place = Place::new();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let _daemon = place.daemon_with(&[&FAST[..], &["--otlp", &url]].concat());
    let mut stream = BufReader::new(collector.accept().unwrap().0);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim().to_ascii_lowercase().strip_prefix("content-length: ") {
            Some(number) => length = number.parse().unwrap(),
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut request = vec![0; length];
    stream.read_exact(&mut request).unwrap();
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    let request = ExportMetricsServiceRequest::decode(&request[..]).unwrap();
    let metrics = request.resource_metrics.into_iter().flat_map(|of| of.scope_metrics);
    let sent: BTreeSet<String> = metrics.flat_map(|of| of.metrics).map(|m| m.name).collect();
    let page = place.metrics().unwrap();
    let names = page.lines().filter(|line| line.starts_with("corebeat_"));
    let names = names.filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
    // There is no group.
    assert_eq!(sent, names.collect());
}

#[test]
fn daemon_steers_and_logs_one_line_without_its_collector() {
    let place = Place::new();
    let metrics = format!("unix:{}", place.path("metrics").display());
    // Nothing listens on this port.
    let otlp = ["--otlp", "http://127.0.0.1:1", "--metrics", &metrics, "--log", "warning"];
    let args = [&["daemon", "--socket", "socket"], &FAST[..], &otlp].concat();
    let mut daemon = Running::start(command(place.0.path(), &args).stderr(Stdio::piped()));
    until(|| place.metric_of_living("corebeat_programs").is_some());
    let _program = place.program(1);
    until(|| place.metric("corebeat_actions_done_total") > 0.0);
    let mut stderr = BufReader::new(daemon.0.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let expected = "corebeat: the metrics are not exported to http://127.0.0.1:1/v1/metrics: ";
    assert!(line.starts_with(expected), "{line}");
    signal(&daemon.0, Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn address_that_is_none_of_a_collector_is_refused() {
    let place = Place::new();
    for url in ["https://localhost:4318", "localhost:4318", "http://user:word@localhost"] {
        let args = ["daemon", "--socket", "socket", "--otlp", url];
        let refused = command(place.0.path(), &args).output().unwrap();
        assert_refused(&refused, 2, "write http://HOST:PORT of a collector");
    }
}
