//! Boxes in Python: functions in `python3` processes, one process for each concurrent call.
//! Messages are lines of JSON: calls `[name, values...]`, and answers `["out", variant,
//! values...]`, `["end"]`, `["error", why]`.
//!
//! ```text
//!   this process                       python3
//!   channel     <== calls, answers ==> 1   a socket
//!   _lifeline   ---------------------> 0   a pipe without data
//! ```
//!
//! The kernel closes this end of the lifeline however this process ends. The process of Python has
//! requested SIGKILL for that event, which ends it also within a call that computes.
//! `PR_SET_PDEATHSIG` is unsuitable: its signal arrives when the thread ends that started the
//! process, such as a thread of an earlier run of the network.

use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::one_line;
use crate::body::{BoxBody, Out};
use crate::error::Error;
use crate::label::Kind;
use crate::plan::BoxPlan;
use crate::value::{Scalar, Value};

/// Program of the processes.
const RUNNER: &str = include_str!("box.py");

/// Bytes of one answer.
const ANSWER_LEN_MAX: u64 = 1 << 30;

/// Output records of one call that are stored until the call ends, so that the process does not
/// wait for full streams. Each further record is passed on before the next answer is read.
const RECORDS_KEPT_MAX: usize = 1024;

/// Python code: a file, or the code of a box in a program.
pub(super) struct Script {
    /// Name for error messages.
    what: String,
    code: String,
    /// Functions that the code defines.
    names: Vec<String>,
    idle: Mutex<Vec<Process>>,
}

impl Script {
    pub(super) fn file(path: &Path) -> Result<Arc<Script>, Error> {
        let what = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(code) => Script::new(what, &code),
            Err(e) => Err(Error::Python { what, why: format!("cannot read the file: {e}") }),
        }
    }

    pub(super) fn new(what: String, code: &str) -> Result<Arc<Script>, Error> {
        match Process::start(&what, code) {
            Ok((process, names)) => Ok(Arc::new(Script {
                what,
                code: code.into(),
                names,
                idle: Mutex::new(vec![process]),
            })),
            Err(why) => Err(Error::Python { what, why }),
        }
    }

    /// Returns the function for a box, if there is one.
    pub(super) fn find(self: &Arc<Script>, plan: &BoxPlan) -> Option<Function> {
        let name = self.names.iter().find(|name| **name == plan.name)?;
        Some(Function { script: Arc::clone(self), name: name.clone() })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Function of a script.
pub(super) struct Function {
    script: Arc<Script>,
    name: String,
}

impl BoxBody for Function {
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        let mut message = vec![json!(self.name)];
        for value in input {
            message.push(to_json(value).ok_or_else(|| {
                format!("the argument {value:?} has no equivalent in Python: {}", out.plan())
            })?);
        }
        let idle = self.script.idle().pop();
        let mut process = match idle {
            Some(process) => process,
            None => Process::start(&self.script.what, &self.script.code)?.0,
        };
        let mut kept = Vec::new();
        process.send(&Json::from(message))?;
        let ended = loop {
            match process.answer()? {
                Answer::Out(record) => kept.push(from_record(&record, out)?),
                Answer::End(_) => break Ok(()),
                Answer::Error(why) => break Err(why),
            }
            if kept.len() == RECORDS_KEPT_MAX && !put(&mut kept, out)? {
                return Ok(()); // dropping the process ends it
            }
        };
        self.script.idle().push(process);
        put(&mut kept, out)?;
        ended
    }
}

fn put(records: &mut Vec<(usize, Vec<Value>)>, out: &mut Out<'_>) -> Result<bool, String> {
    for (variant, mut values) in records.drain(..) {
        if !out.put(variant, &mut values)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A `python3` process that waits for calls.
struct Process {
    child: Child,
    channel: BufReader<UnixStream>,
    /// Its end ends the process.
    _lifeline: PipeWriter,
}

enum Answer {
    Out(Vec<Json>),
    End(Json),
    Error(String),
}

impl Process {
    /// Starts a process and runs the code. Returns the process and the functions of the code.
    fn start(what: &str, code: &str) -> Result<(Process, Vec<String>), String> {
        let failed = |e| format!("python3 has no connection: {e}");
        let (ended, _lifeline) = io::pipe().map_err(failed)?;
        let (channel, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new("python3");
        command.args(["-c", RUNNER]).stdin(ended).stdout(OwnedFd::from(theirs));
        let child = command.env("PYTHONIOENCODING", "utf-8").spawn().map_err(|e| {
            format!("python3 does not start: {e}; install it, or write the box in C or Rust")
        })?;
        // The socket of the process, whose end must be the end of the answers.
        drop(command);
        let mut process = Process { child, channel: BufReader::new(channel), _lifeline };
        process.send(&json!([what, code]))?;
        match process.answer()? {
            Answer::End(names) => Ok((process, serde_json::from_value(names).unwrap_or_default())),
            Answer::Error(why) => Err(why),
            Answer::Out(_) => Err("the code outputs a record outside of a call".into()),
        }
    }

    fn send(&mut self, message: &Json) -> Result<(), String> {
        let sent = self.channel.get_mut().write_all(format!("{message}\n").as_bytes());
        sent.map_err(|e| self.ended(e))
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let mut line = Vec::new();
        let read = (&mut self.channel).take(ANSWER_LEN_MAX).read_until(b'\n', &mut line);
        if !line.ends_with(b"\n") {
            return Err(match read {
                Ok(n) if n as u64 == ANSWER_LEN_MAX => {
                    format!("an output record has more than {ANSWER_LEN_MAX} bytes: split it")
                }
                Ok(_) => self.ended(io::ErrorKind::UnexpectedEof.into()),
                Err(e) => self.ended(e),
            });
        }
        let mut answer: Vec<Json> = serde_json::from_slice(&line).map_err(|e| e.to_string())?;
        let kind = if answer.is_empty() { Json::Null } else { answer.remove(0) };
        Ok(match kind.as_str() {
            Some("out") => Answer::Out(answer),
            Some("end") => Answer::End(answer.pop().unwrap_or_default()),
            _ => Answer::Error(one_line(answer.first().and_then(Json::as_str).unwrap_or_default())),
        })
    }

    /// Returns the reason why the process does not answer.
    fn ended(&mut self, e: io::Error) -> String {
        match self.child.wait() {
            Ok(status) => format!("python3 ended ({status})"),
            Err(_) => e.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process waits for a call, or its outputs are no longer needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Converts a value for Python. Returns `None` if Python has no equivalent.
fn to_json(value: &Value) -> Option<Json> {
    let number = |scalar: Scalar| match scalar.integer() {
        Some(n) => serde_json::Number::from_i128(n).map(Json::Number),
        None => serde_json::Number::from_f64(scalar.real()?).map(Json::Number),
    };
    match (value, value.as_str(), value.as_bytes()) {
        (Value::Tag(n), ..) => Some(json!(n)),
        (Value::Scalar(scalar), None, _) => number(*scalar),
        (_, Some(text), _) => Some(json!(text)),
        (Value::Array(_), _, Some(bytes)) => {
            Some(json!({ "bytes": bytes.iter().map(|b| char::from(*b)).collect::<String>() }))
        }
        (Value::Array(array), ..) if array.element().size() <= 8 => {
            let element = array.element();
            let scalar = |bytes: &[u8]| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                Scalar::new(element, word)
            };
            array.bytes().chunks_exact(element.size()).map(|bytes| number(scalar(bytes))).collect()
        }
        _ => None,
    }
}

/// Converts an output of Python into a record. A whole number in a field becomes an `int`, or a
/// `long` if it is larger.
fn from_record(record: &[Json], out: &Out<'_>) -> Result<(usize, Vec<Value>), String> {
    let variant = record.first().and_then(Json::as_u64).unwrap_or(0) as usize;
    let labels = variant
        .checked_sub(1)
        .and_then(|v| out.plan().outputs.get(v))
        .map_or(&[][..], |labels| labels);
    let mut values = Vec::new();
    for (i, json) in record.iter().skip(1).enumerate() {
        let tag = labels.get(i).is_some_and(|label| label.kind() != Kind::Field);
        let int = json.as_i64().and_then(|n| i32::try_from(n).ok());
        let value = match (json, int) {
            (_, Some(n)) if tag => Some(Value::Tag(n)),
            (_, Some(n)) => Some(Value::from(n)),
            (Json::Number(_), _) => {
                json.as_i64().map(Value::from).or(json.as_f64().map(Value::from))
            }
            (Json::Bool(b), _) if tag => Some(Value::Tag((*b).into())),
            (Json::Bool(b), _) => Some(Value::from(i32::from(*b))),
            (Json::String(text), _) => Some(Value::from(text.as_str())),
            (Json::Array(list), _) => list
                .iter()
                .map(Json::as_i64)
                .collect::<Option<Vec<i64>>>()
                .map(Value::from)
                .or_else(|| {
                    list.iter().map(Json::as_f64).collect::<Option<Vec<f64>>>().map(Value::from)
                }),
            (json, _) => json["bytes"]
                .as_str()
                .map(|text| Value::bytes(&text.chars().map(|c| c as u8).collect::<Vec<u8>>())),
        };
        values.push(value.ok_or_else(|| {
            format!("the box output {json} in variant {variant}: {}", out.plan())
        })?);
    }
    Ok((variant, values))
}
