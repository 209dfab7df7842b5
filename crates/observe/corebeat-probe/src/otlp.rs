//! Exports calls as spans of OpenTelemetry.
//!
//! The format is OTLP in its JSON encoding (OpenTelemetry Protocol, version 1): one
//! `ExportTraceServiceRequest`. A collector reads the file with its receiver `otlpjsonfile`, and an
//! HTTP endpoint accepts it: `curl -H 'Content-Type: application/json' --data @FILE
//! http://HOST:4318/v1/traces`.
//!
//! A call is a span, and its caller is its parent, also over threads and tasks. A call without a
//! caller begins a trace.

use crate::call::{Call, Calls, Line, Outcome};
use serde::Serialize;
use std::io::{self, Write};

/// `SPAN_KIND_INTERNAL` and `STATUS_CODE_ERROR`.
const INTERNAL: u8 = 1;
const ERROR: u8 = 2;

/// A span. 64-bit integers are texts in the JSON encoding.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Span<'a> {
    trace_id: &'a str,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: &'a str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Attribute<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
    message: &'static str,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'a str,
    value: Value<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Value<'a> {
    StringValue(&'a str),
    IntValue(String),
}

fn text<'a>(key: &'a str, value: &'a str) -> Attribute<'a> {
    Attribute { key, value: Value::StringValue(value) }
}

fn number(key: &str, value: u64) -> Attribute<'_> {
    Attribute { key, value: Value::IntValue(value.to_string()) }
}

/// Writes the calls as one JSON object.
///
/// # Errors
///
/// The output cannot be written.
pub fn write(calls: &Calls, mut out: impl Write) -> io::Result<()> {
    let process = calls.process();
    let resource =
        [text("service.name", &process.program), number("process.pid", process.pid.into())];
    out.write_all(br#"{"resourceSpans":[{"resource":{"attributes":"#)?;
    serde_json::to_writer(&mut out, &resource)?;
    out.write_all(br#"},"scopeSpans":[{"scope":{"name":"corebeat-probe"},"spans":["#)?;
    // The identity of each call's trace: that of the call which began it.
    let mut traces: Vec<String> = Vec::with_capacity(calls.calls().len());
    for (index, call) in (0..).zip(calls.calls()) {
        let trace = match call.parent {
            Some(parent) => traces[parent as usize].clone(),
            None => {
                format!("{:016x}{:08x}{:08x}", real_ns(calls, call.begin_ns), process.pid, index)
            }
        };
        traces.push(trace);
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut out, &span(calls, index, call, &traces[index as usize]))?;
    }
    out.write_all(b"\n]}]}]}\n")?;
    out.flush()
}

fn span<'a>(calls: &'a Calls, index: u32, call: &Call, trace_id: &'a str) -> Span<'a> {
    let operation = calls.operation(call);
    let (tid, thread) = calls.thread(call.thread);
    let mut attributes = vec![
        text("code.file.path", &operation.file),
        number("code.line.number", operation.line.into()),
        number("thread.id", tid.into()),
        text("thread.name", thread),
    ];
    if let Line::Task(task) = call.line {
        attributes.push(number("corebeat.task", task));
        attributes.extend(calls.task_name(task).map(|name| text("corebeat.task.name", name)));
    }
    attributes.extend(calls.fields(index).map(|(name, value)| text(name, value)));
    if matches!(call.outcome, Outcome::Open | Outcome::EventsLost) {
        attributes.push(text("corebeat.end", call.outcome.remark()));
    }
    let is_error = call.outcome == Outcome::Panicked;
    // A span with number 0 is invalid.
    let id = |index: u32| format!("{:016x}", u64::from(index) + 1);
    Span {
        trace_id,
        span_id: id(index),
        parent_span_id: call.parent.map(id),
        name: &operation.name,
        kind: INTERNAL,
        start_time_unix_nano: real_ns(calls, call.begin_ns).to_string(),
        end_time_unix_nano: real_ns(calls, call.end_ns).to_string(),
        attributes,
        status: is_error.then(|| Status { code: ERROR, message: call.outcome.remark() }),
    }
}

fn real_ns(calls: &Calls, ns: u64) -> u64 {
    ns.saturating_add_signed(calls.real_offset_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_spans_with_parents() {
        let calls = Calls::of(
            &["a::\"f\"", "b"],
            &[
                Call { end_ns: 9, ..Call::of(0, None, 1) },
                Call {
                    end_ns: 5,
                    outcome: Outcome::Panicked,
                    line: Line::Task(7),
                    handed_over: true,
                    ..Call::of(1, Some(0), 2)
                },
                Call { outcome: Outcome::Open, ..Call::of(1, None, 6) },
            ],
        );
        let mut json = Vec::new();
        write(&calls, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let spans = json["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!(spans.len(), 3);
        assert_eq!(spans[0]["name"], "a::\"f\"");
        assert_eq!((&spans[0]["startTimeUnixNano"], &spans[0]["kind"]), (&"1".into(), &1.into()));
        assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
        assert_eq!(spans[1]["traceId"], spans[0]["traceId"]);
        assert_ne!(spans[2]["traceId"], spans[0]["traceId"]);
        for span in spans {
            let [trace, own] = ["traceId", "spanId"].map(|id| span[id].as_str().unwrap());
            assert_eq!((trace.len(), own.len()), (32, 16));
            assert!(trace.contains(|c| c != '0') && own.contains(|c| c != '0'));
        }
        assert!(spans[0].get("parentSpanId").is_none() && spans[0].get("status").is_none());
        assert_eq!(spans[1]["status"]["code"], 2);
        let attributes = |span: usize| spans[span]["attributes"].to_string();
        assert!(attributes(1).contains(r#"{"key":"corebeat.task","value":{"intValue":"7"}}"#));
        assert!(attributes(2).contains("open at the end of the trace"));
    }

    #[test]
    fn empty_trace_is_valid() {
        let mut json = Vec::new();
        write(&Calls::default(), &mut json).unwrap();
        serde_json::from_slice::<serde_json::Value>(&json).unwrap();
    }
}
