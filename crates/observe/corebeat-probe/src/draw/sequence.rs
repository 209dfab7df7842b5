//! Sequence diagrams: the calls of one run, and of the runs that were handed over from it.

use super::svg::{LINE, Svg, width};
use super::{Format, clean, dot, mermaid};
use crate::call::{Calls, Outcome};
use std::collections::HashSet;
use std::fmt::Write;

/// Limit on the number of calls in a sequence; the first calls are drawn.
pub const MESSAGES_MAX: usize = 200;

/// A message between two participants.
struct Message {
    from: usize,
    to: usize,
    what: What,
    name: String,
    after_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Call,
    HandedCall,
    Return,
    Panic,
    /// The end of the call was not recorded.
    Lost,
}

/// The longest run of calls that was not handed over, which is the default of a sequence
/// diagram.
pub fn longest(calls: &Calls) -> Option<u32> {
    let roots = calls.calls().iter().filter(|call| call.parent.is_none());
    // The first of several equal ones.
    let longest = roots.rev().max_by_key(|call| call.end_ns - call.begin_ns);
    longest.map(|call| call.trace)
}

/// Draws a run of calls ([`Call::trace`](crate::Call::trace)), and the runs that were handed over
/// from it, sorted by time. The participants are modules and types. As a graph, the messages are
/// numbered edges.
pub fn sequence(calls: &Calls, trace: u32, format: Format) -> String {
    let (participants, messages, left_out) = messages(calls, trace);
    let more = (left_out > 0).then(|| format!("{left_out} more"));
    match format {
        Format::Text => {
            let mut out = format!("run {trace}\n");
            for message in &messages {
                let arrow = match message.what {
                    What::Call => "->",
                    What::HandedCall => "~>",
                    What::Return | What::Panic | What::Lost => "<-",
                };
                let (from, to) = match message.what {
                    What::Call | What::HandedCall => (message.from, message.to),
                    _ => (message.to, message.from),
                };
                let (from, to) = (&participants[from], &participants[to]);
                let _ = writeln!(
                    out,
                    "{:>11}  {from} {arrow} {to}: {}",
                    after(message.after_ns),
                    message.name
                );
            }
            if let Some(more) = more {
                let _ = writeln!(out, "... {more} calls");
            }
            out
        }
        Format::Dot => {
            let mut out = String::from("digraph sequence {\n  node [shape=box];\n");
            for (number, name) in participants.iter().enumerate() {
                let _ = writeln!(out, "  p{number} [label={}];", dot(name));
            }
            let called =
                messages.iter().filter(|m| matches!(m.what, What::Call | What::HandedCall));
            for (number, message) in (1..).zip(called) {
                let style = if message.what == What::HandedCall { ", style=dashed" } else { "" };
                let label = dot(&format!("{number}: {}", message.name));
                let _ =
                    writeln!(out, "  p{} -> p{} [label={label}{style}];", message.from, message.to);
            }
            if let Some(more) = more {
                let _ = writeln!(out, "  more [label={}, shape=plain];", dot(&more));
            }
            out + "}\n"
        }
        Format::Mermaid => {
            let mut out = String::from("sequenceDiagram\n");
            for (number, name) in participants.iter().enumerate() {
                let _ = writeln!(out, "  participant p{number} as {}", mermaid(name));
            }
            for message in &messages {
                let arrow = match message.what {
                    What::Call => "->>+",
                    What::HandedCall => "-)+",
                    What::Return => "-->>-",
                    What::Panic | What::Lost => "--x-",
                };
                let name = mermaid(&message.name);
                let _ = writeln!(out, "  p{}{arrow}p{}: {name}", message.from, message.to);
            }
            if let (Some(more), true) = (more, !participants.is_empty()) {
                let _ = writeln!(out, "  Note over p0: {more}");
            }
            out
        }
        Format::Svg => picture(&participants, &messages, more),
    }
}

/// A time since the begin of the run.
fn after(ns: u64) -> String {
    format!("{:.1} µs", ns as f64 / 1e3)
}

/// Participants, messages, and the number of omitted calls. The first participant is the caller of
/// the run.
fn messages(calls: &Calls, trace: u32) -> (Vec<String>, Vec<Message>, usize) {
    let all = calls.calls();
    // Runs that belong to the sequence. A run precedes the runs that it handed over.
    let mut runs = HashSet::from([trace]);
    let mut steps: Vec<(u64, u32, bool)> = Vec::new();
    let by_run = calls.runs();
    for (number, run) in (0..).zip(&by_run) {
        let root = run.first().and_then(|root| all[*root as usize].parent);
        if root.is_some_and(|parent| runs.contains(&all[parent as usize].trace)) {
            runs.insert(number);
        }
        if runs.contains(&number) {
            let timed = calls.steps(run).into_iter().map(|(call, enters)| {
                let at = &all[call as usize];
                (if enters { at.begin_ns } else { at.end_ns }, call, enters)
            });
            steps.extend(timed);
        }
    }
    // The sort is stable: steps of a run keep their order.
    steps.sort_by_key(|step| step.0);
    let begin_ns = steps.first().map_or(0, |step| step.0);
    let mut participants = Vec::new();
    let mut messages = Vec::new();
    let mut drawn: HashSet<u32> = HashSet::new();
    let mut called = 0;
    for (at_ns, number, enters) in steps {
        let call = &all[number as usize];
        if enters {
            called += 1;
            if drawn.len() == MESSAGES_MAX {
                continue;
            }
            drawn.insert(number);
        } else if !drawn.contains(&number) {
            continue;
        }
        let mut participant = |name: String| {
            participants.iter().position(|other| *other == name).unwrap_or_else(|| {
                participants.push(name);
                participants.len() - 1
            })
        };
        let place = |call: &crate::Call| match calls.operation(call).place() {
            "" => "(program)".to_owned(),
            place => clean(place),
        };
        let caller = match call.parent {
            Some(parent) => place(&all[parent as usize]),
            None => {
                let (tid, name) = calls.thread(call.thread);
                format!("thread {tid} {}", clean(name)).trim_end().to_owned()
            }
        };
        let (caller, callee) = (participant(caller), participant(place(call)));
        let mut function = clean(calls.operation(call).function());
        let fields: Vec<String> =
            calls.fields(number).map(|(name, value)| clean(&format!("{name}={value}"))).collect();
        if !fields.is_empty() {
            function = format!("{function}({})", fields.join(", "));
        }
        let (from, to, what, name) = match (enters, call.outcome) {
            (true, _) if call.handed_over => (caller, callee, What::HandedCall, function),
            (true, _) => (caller, callee, What::Call, function),
            (false, Outcome::Returned) => (callee, caller, What::Return, "return".into()),
            (false, Outcome::Panicked) => (callee, caller, What::Panic, "panic".into()),
            (false, Outcome::Open) => (callee, caller, What::Lost, "still open".into()),
            (false, Outcome::EventsLost) => (callee, caller, What::Lost, "lost".into()),
        };
        messages.push(Message { from, to, what, name, after_ns: at_ns - begin_ns });
    }
    (participants, messages, called - drawn.len())
}

fn picture(participants: &[String], messages: &[Message], more: Option<String>) -> String {
    let mut svg = Svg::new();
    const TIMES: f64 = 90.0;
    let wide = participants.iter().map(|name| width(name)).fold(100.0, f64::max) + 30.0;
    let middle = |participant: usize| TIMES + 10.0 + (participant as f64 + 0.5) * wide;
    let bottom = 40.0 + (messages.len() as f64 + 1.0) * LINE;
    for (number, name) in participants.iter().enumerate() {
        let x = middle(number);
        svg.path(&format!("M{x:.1} 30V{bottom:.1}"), true, false);
        let own = width(name) + 12.0;
        svg.boxed(x - own / 2.0, 20.0, own, name, 0.3);
    }
    for (row, message) in messages.iter().enumerate() {
        let y = 44.0 + (row as f64 + 0.7) * LINE;
        let (from, to) = (middle(message.from), middle(message.to));
        let dashed = !matches!(message.what, What::Call);
        svg.text(6.0, y, &after(message.after_ns));
        if message.from == message.to {
            let (right, below) = (from + 26.0, y + 6.0);
            svg.path(&format!("M{from:.1} {y:.1}H{right:.1}V{below:.1}H{from:.1}"), dashed, true);
            svg.text(right + 4.0, y, &message.name);
        } else {
            svg.path(&format!("M{from:.1} {y:.1}H{to:.1}"), dashed, true);
            if message.what != What::Return {
                svg.text(from.min(to) + 8.0, y - 8.0, &message.name);
            }
        }
    }
    more.iter().for_each(|more| svg.text(TIMES, bottom + LINE / 2.0, more));
    svg.end()
}
