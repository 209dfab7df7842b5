//! `corebeat daemon --otlp URL`: sends the metrics to a collector, by OTLP over HTTP (OpenTelemetry
//! Protocol 1.9, section OTLP/HTTP, in its binary encoding).
//!
//! A thread of its own sends them, so that the daemon never waits for the collector.

use corebeat_daemon::{GroupLabel, Kind, Metric, Number, Reading};
use corebeat_sync::quiet;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::metrics::v1::{
    self as proto, AggregationTemporality, Gauge, NumberDataPoint, ResourceMetrics, ScopeMetrics,
    Sum, metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::Agent;
use ureq::http::Uri;

/// Time limit of a request with its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest size of an answer, in bytes. It has a number and one line.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Path of the metrics, if the address has none.
const PATH: &str = "/v1/metrics";

/// Address of a collector, with the path of its metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint(String);

impl std::str::FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Endpoint, &'static str> {
        let uri: Option<Uri> = text.parse().ok();
        // A log line has the address: it contains no password.
        let authority = uri.as_ref().filter(|uri| uri.scheme_str() == Some("http"));
        let authority = authority.and_then(Uri::authority).filter(|a| !a.as_str().contains('@'));
        let (Some(uri), Some(authority)) = (&uri, authority) else {
            return Err("write http://HOST:PORT of a collector, such as http://127.0.0.1:4318; \
                        for https or a password, let a collector on this host forward the metrics");
        };
        let path = Some(uri.path()).filter(|path| *path != "/").unwrap_or(PATH);
        let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
        Ok(Endpoint(format!("http://{authority}{path}{query}")))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A query may contain a secret.
        f.write_str(self.0.split('?').next().unwrap_or_default())
    }
}

/// Starts the thread that sends the readings. `socket` is that of the daemon. `report` receives a
/// line when the collector becomes unavailable, and one when it is available again. The thread
/// ends with the process: nothing waits for a slow collector.
///
/// # Errors
/// The system cannot start the thread.
pub(super) fn start(
    endpoint: Endpoint,
    socket: &Path,
    report: impl FnMut(String) + Send + 'static,
) -> io::Result<SyncSender<Reading>> {
    let mut exporter = Exporter::new(endpoint, socket, report);
    // A reading that waits is the next one to send; more of them would be old.
    let (sender, readings) = sync_channel(1);
    quiet::spawn("otlp", move || {
        for reading in readings {
            exporter.export(reading);
        }
    })?;
    Ok(sender)
}

struct Exporter<R> {
    endpoint: Endpoint,
    agent: Agent,
    resource: Resource,
    starts: Starts,
    /// Number of readings since the collector is unavailable; 0 if it is available.
    lost: u64,
    /// Whether the collector has rejected values of the last reading that it accepted.
    rejects: bool,
    report: R,
}

/// The times at which the sums began, in nanoseconds since 1970.
#[derive(Debug)]
struct Starts {
    /// Of the sums of the daemon, and of those of groups in the first reading.
    first_ns: u64,
    /// The last reading.
    last_ns: u64,
    /// The sums of groups in the last reading, by metric and group: each with its start.
    groups: BTreeMap<Series, (Number, u64)>,
}

/// Name of the metric, user and number of the group.
type Series = (&'static str, u32, u32);

impl Starts {
    fn new(now_ns: u64) -> Starts {
        Starts { first_ns: now_ns, last_ns: now_ns, groups: BTreeMap::new() }
    }

    /// Updates the starts before this reading is sent. A sum of a group that is missing from the
    /// last reading, or smaller than there, began anew after the last reading. If the wall clock
    /// was set back, all sums start at the new time: a start after the reading would be invalid.
    fn update(&mut self, reading: &Reading) {
        let is_back = reading.unix_ns < self.last_ns;
        if is_back {
            *self = Starts::new(reading.unix_ns);
        }
        let sums = reading.metrics.iter().filter(|metric| metric.kind == Kind::Counter);
        let of_groups = sums.flat_map(|metric| {
            let labelled = |(label, number): &(Option<GroupLabel>, Number)| {
                label.map(|label| ((metric.name, label.owner, label.group), *number))
            };
            metric.values.iter().filter_map(labelled)
        });
        let start_ns = |series: &Series, number: Number| match self.groups.get(series) {
            Some((before, start_ns)) if *before <= number => *start_ns,
            _ => self.last_ns,
        };
        self.groups = of_groups
            .map(|(series, number)| (series, (number, start_ns(&series, number))))
            .collect();
        self.last_ns = reading.unix_ns;
    }

    /// The start of a value of the last reading.
    fn of(&self, metric: &'static str, label: Option<GroupLabel>) -> u64 {
        let series = label.map(|label| (metric, label.owner, label.group));
        let of_group = series.and_then(|series| self.groups.get(&series));
        of_group.map_or(self.first_ns, |(_, start_ns)| *start_ns)
    }
}

impl<R: FnMut(String)> Exporter<R> {
    fn new(endpoint: Endpoint, socket: &Path, report: R) -> Exporter<R> {
        let agent = Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            // The user has named the collector: neither a proxy nor an answer names another one.
            .max_redirects(0)
            .proxy(None)
            .build();
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Exporter {
            endpoint,
            agent: agent.into(),
            resource: resource(socket),
            starts: Starts::new(start.as_nanos() as u64),
            lost: 0,
            rejects: false,
            report,
        }
    }

    fn export(&mut self, reading: Reading) {
        match self.send(reading) {
            Ok(rejected) => {
                if self.lost > 0 {
                    let lost = std::mem::take(&mut self.lost);
                    (self.report)(format!(
                        "the metrics are exported again; readings left out: {lost}"
                    ));
                }
                let is_new = rejected.is_some() && !self.rejects;
                self.rejects = rejected.is_some();
                rejected.into_iter().filter(|_| is_new).for_each(&mut self.report);
            }
            Err(why) => {
                if self.lost == 0 {
                    let endpoint = &self.endpoint;
                    (self.report)(format!(
                        "the metrics are not exported to {endpoint}: {why}; start the collector or \
                         correct the URL of --otlp; the daemon retries each 10 s"
                    ));
                }
                self.lost += 1;
            }
        }
    }

    /// Sends a reading. Returns a line about the values that the collector rejects, if any.
    fn send(&mut self, reading: Reading) -> Result<Option<String>, String> {
        self.starts.update(&reading);
        let body = request(reading, self.resource.clone(), &self.starts).encode_to_vec();
        let post = self.agent.post(&self.endpoint.0);
        let post = post.header("Content-Type", "application/x-protobuf");
        let mut answer = post.send(&body[..]).map_err(|e| e.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("the collector answers {}", answer.status()));
        }
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let answer = ExportMetricsServiceResponse::decode(&body.map_err(|e| e.to_string())?[..]);
        let answer = answer.map_err(|e| format!("the answer is not one of a collector: {e}"))?;
        let rejected = answer.partial_success.filter(|part| part.rejected_data_points > 0);
        Ok(rejected.map(|part| {
            format!(
                "the collector at {} rejects {} of the metrics' values: {}; correct its \
                 configuration; the daemon sends the others",
                self.endpoint,
                part.rejected_data_points,
                part.error_message.lines().next().unwrap_or_default()
            )
        }))
    }
}

/// Attributes that identify this daemon: one daemon has a socket of a host.
fn resource(socket: &Path) -> Resource {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = [
        ("service.name", "corebeat".into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("service.instance.id", format!("{host}:{}", socket.display())),
        ("host.name", host),
    ];
    let attributes = attributes.map(|(key, text)| attribute(key, Value::StringValue(text)));
    Resource { attributes: attributes.into(), ..Resource::default() }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

fn request(reading: Reading, resource: Resource, starts: &Starts) -> ExportMetricsServiceRequest {
    let Reading { unix_ns, metrics } = reading;
    let point = |name, (label, number): (Option<GroupLabel>, Number)| NumberDataPoint {
        attributes: label.map_or(vec![], |GroupLabel { owner, group }| {
            let of = |key, number: u32| attribute(key, Value::IntValue(number.into()));
            vec![of("owner", owner), of("group", group)]
        }),
        start_time_unix_nano: starts.of(name, label),
        time_unix_nano: unix_ns,
        value: Some(match number {
            Number::Whole(number) => number_data_point::Value::AsInt(number.cast_signed()),
            Number::Real(number) => number_data_point::Value::AsDouble(number),
        }),
        ..NumberDataPoint::default()
    };
    let metric = |Metric { name, kind, help, values }: Metric| {
        let data_points = values.into_iter().map(|value| point(name, value)).collect();
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let data = match kind {
            Kind::Gauge => Data::Gauge(Gauge { data_points }),
            Kind::Counter => {
                Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
            }
        };
        // Without a unit: a backend for Prometheus would add it to the name.
        let (name, description) = (name.into(), help.into());
        proto::Metric { name, description, data: Some(data), ..proto::Metric::default() }
    };
    // A metric without values is left out: some collectors reject it.
    let metrics = metrics.into_iter().filter(|metric| !metric.values.is_empty());
    let scope = InstrumentationScope { name: "corebeat".into(), ..Default::default() };
    let metrics = metrics.map(metric).collect();
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..Default::default() }];
    let of_resource =
        ResourceMetrics { resource: Some(resource), scope_metrics, ..Default::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    /// A collector that gives these answers, and returns the requests.
    fn collector(
        answers: Vec<(&'static str, Vec<u8>)>,
    ) -> (Endpoint, JoinHandle<Vec<ExportMetricsServiceRequest>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = move |(status, body): (&str, Vec<u8>)| {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut lines = vec![];
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_ascii_lowercase());
            }
            assert_eq!(lines[0], "post /v1/metrics http/1.1");
            assert!(lines.contains(&"content-type: application/x-protobuf".into()), "{lines:?}");
            let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
            let mut request = vec![0; length.unwrap().parse().unwrap()];
            stream.read_exact(&mut request).unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            let answer = [head.as_bytes(), b"Connection: close\r\n\r\n", &body].concat();
            stream.get_mut().write_all(&answer).unwrap();
            ExportMetricsServiceRequest::decode(&request[..]).unwrap()
        };
        (endpoint, thread::spawn(move || answers.into_iter().map(serve).collect()))
    }

    fn reading(unix_ns: u64) -> Reading {
        let label = GroupLabel { owner: 1000, group: 7 };
        let metric = |name, kind, values| Metric { name, kind, help: "Help.", values };
        let metrics = vec![
            metric("corebeat_cycles_total", Kind::Counter, vec![(None, Number::Whole(3))]),
            metric("corebeat_group_rate", Kind::Gauge, vec![(Some(label), Number::Real(0.5))]),
            metric("corebeat_group_rate_min", Kind::Gauge, vec![]),
        ];
        Reading { unix_ns, metrics }
    }

    /// The lines about these answers, and the requests.
    fn lines_about(
        answers: Vec<(&'static str, Vec<u8>)>,
    ) -> (Vec<String>, Vec<ExportMetricsServiceRequest>) {
        let count = answers.len() as u64;
        let (endpoint, requests) = collector(answers);
        let mut lines = vec![];
        let mut exporter = Exporter::new(endpoint, Path::new("/run/s"), |line| lines.push(line));
        (1..=count).for_each(|unix_ns| exporter.export(reading(unix_ns)));
        drop(exporter);
        (lines, requests.join().unwrap())
    }

    #[test]
    fn collector_receives_counters_gauges_and_groups() {
        let (lines, requests) = lines_about(vec![("200 OK", vec![])]);
        assert_eq!(lines, [""; 0]);
        let of_resource = &requests[0].resource_metrics[0];
        let attributes = &of_resource.resource.as_ref().unwrap().attributes;
        assert_eq!(attributes[0], attribute("service.name", Value::StringValue("corebeat".into())));
        let [cycles, rate] = &of_resource.scope_metrics[0].metrics[..] else {
            panic!("{requests:?}")
        };
        assert_eq!(
            (cycles.name.as_str(), rate.name.as_str()),
            ("corebeat_cycles_total", "corebeat_group_rate")
        );
        let (Some(Data::Sum(sum)), Some(Data::Gauge(gauge))) = (&cycles.data, &rate.data) else {
            panic!("{requests:?}")
        };
        assert!(
            sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative
        );
        let [of_cycles, of_group] = [&sum.data_points[0], &gauge.data_points[0]];
        assert_eq!(of_cycles.value, Some(number_data_point::Value::AsInt(3)));
        assert_eq!(of_group.value, Some(number_data_point::Value::AsDouble(0.5)));
        let labels = [("owner", 1000), ("group", 7)];
        let labels = labels.map(|(key, number)| attribute(key, Value::IntValue(number)));
        assert_eq!((&of_group.attributes[..], of_group.time_unix_nano), (&labels[..], 1));
        assert!(of_group.start_time_unix_nano <= of_group.time_unix_nano);
    }

    #[test]
    fn collector_that_refuses_costs_one_line_until_it_accepts() {
        let refused = || ("503 Service Unavailable", vec![]);
        let good = || ("200 OK", vec![]);
        let (lines, requests) =
            lines_about(vec![good(), refused(), refused(), good(), good(), refused()]);
        let [first, again, second] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.starts_with("the metrics are not exported to http://127.0.0.1:"), "{first}");
        assert!(first.contains("/v1/metrics: the collector answers 503"), "{first}");
        assert_eq!(again, "the metrics are exported again; readings left out: 2");
        assert_eq!((second, requests.len()), (first, 6));
    }

    #[test]
    fn rejected_values_cost_one_line_and_no_reading() {
        let message = "no such\nsecond line".into();
        let part = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: message };
        let rejected = ExportMetricsServiceResponse { partial_success: Some(part) };
        let rejected = || ("200 OK", rejected.encode_to_vec());
        let (lines, _) = lines_about(vec![rejected(), rejected(), ("200 OK", vec![]), rejected()]);
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.contains(" rejects 2 of the metrics' values: no such; "), "{first}");
        assert_eq!(second, first);
    }

    /// The starts of the sums of the daemon and of a group, and the time, of these readings: each
    /// with its time and the beats of the group, if the group exists.
    fn starts_of(first_ns: u64, readings: &[(u64, Option<u64>)]) -> Vec<(u64, u64)> {
        let mut starts = Starts::new(first_ns);
        let label = GroupLabel { owner: 1000, group: 7 };
        let start = |(unix_ns, beats): &(u64, Option<u64>)| {
            let values = beats.map(|beats| (Some(label), Number::Whole(beats)));
            let metric = |name, values| Metric { name, kind: Kind::Counter, help: "", values };
            let own = vec![(None, Number::Whole(1))];
            let metrics = vec![metric("own", own), metric("beats", values.into_iter().collect())];
            let reading = Reading { unix_ns: *unix_ns, metrics };
            starts.update(&reading);
            let request = request(reading, Resource::default(), &starts);
            let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
            let start = |metric: &proto::Metric| match &metric.data {
                Some(Data::Sum(sum)) => sum.data_points[0].start_time_unix_nano,
                other => panic!("{other:?}"),
            };
            (start(&metrics[0]), metrics.get(1).map_or(0, start))
        };
        readings.iter().map(start).collect()
    }

    #[test]
    fn sum_of_a_group_restarts_with_the_group() {
        let readings =
            [(20, Some(5)), (30, Some(5)), (40, Some(4)), (50, Some(9)), (60, None), (70, Some(9))];
        let expected = [(10, 10), (10, 10), (10, 30), (10, 30), (10, 0), (10, 60)];
        assert_eq!(starts_of(10, &readings), expected);
    }

    #[test]
    fn sums_restart_once_when_the_wall_clock_is_set_back() {
        let readings = [(110, Some(5)), (50, Some(6)), (60, Some(7)), (200, Some(8))];
        let expected = [(100, 100), (50, 50), (50, 50), (50, 50)];
        assert_eq!(starts_of(100, &readings), expected);
    }

    #[test]
    fn redirections_and_foreign_answers_are_failures() {
        for (status, body, expected) in [
            ("307 Temporary Redirect", vec![], "the collector answers 307"),
            ("200 OK", b"<html>".to_vec(), "the answer is not one of a collector"),
        ] {
            let (lines, _) = lines_about(vec![(status, body)]);
            assert!(lines.len() == 1 && lines[0].contains(expected), "{lines:?}");
        }
    }

    #[test]
    fn address_is_completed_or_explained() {
        let endpoint = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.0);
        for (text, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/metrics"),
            ("http://host?token=x", "http://host/v1/metrics?token=x"),
            ("http://host/a?b=c&d", "http://host/a?b=c&d"),
            ("http://host:9090/api/v1/otlp/v1/metrics", "http://host:9090/api/v1/otlp/v1/metrics"),
        ] {
            assert_eq!(endpoint(text).as_deref(), Ok(expected));
        }
        let with_secret = "http://host/a?token=x".parse::<Endpoint>().unwrap();
        assert_eq!(with_secret.to_string(), "http://host/a");
        for bad in
            ["", "4318", "127.0.0.1:4318", "https://host", "http://a:b@host", "/v1", "http://"]
        {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
