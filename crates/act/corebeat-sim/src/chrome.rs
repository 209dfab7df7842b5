//! A timeline in the Trace Event Format of Chrome's, as one JSON object: what Perfetto (ui.perfetto.dev) opens.

use crate::Timeline;
use std::fmt::{self, Write};

impl Timeline {
    /// The object. CPUs are tracks, stays are slices with the thread's name; phases are instants.
    pub fn chrome(&self) -> String {
        let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        out += "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"simulated machine\"}}";
        for (c, spans) in self.cpus.iter().enumerate() {
            let track = c + 1;
            let _ = write!(
                out,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{track},\"args\":{{\"name\":\"CPU {c}\"}}}}"
            );
            for span in spans {
                let (program, thread) = &self.threads[span.thread];
                let _ = write!(
                    out,
                    ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{track},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":{}}}",
                    Us(span.from_ns),
                    Us(span.to_ns - span.from_ns),
                    Text(&format!("{} {thread}", self.programs[*program])),
                    Text(&self.programs[*program]),
                );
            }
        }
        for (ns, program, phase) in &self.phases {
            let name = format!("{}: {phase}", self.programs[*program]);
            let _ = write!(
                out,
                ",\n{{\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":1,\"ts\":{},\"name\":{}}}",
                Us(*ns),
                Text(&name)
            );
        }
        out + "\n]}\n"
    }
}

/// Nanoseconds as the format has them: microseconds.
struct Us(u64);

impl fmt::Display for Us {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// A text in quotes.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use crate::timeline::sample::timeline;

    #[test]
    fn chrome_object_has_every_stay() {
        let text = timeline().chrome();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = object["traceEvents"].as_array().unwrap();
        let stays: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(stays.len(), 4);
        assert_eq!(stays[0]["name"], "a<b thread \"0\"");
        assert_eq!((stays[3]["ts"].as_f64(), stays[3]["dur"].as_f64()), (Some(8.0), Some(2.0)));
        assert!(events.iter().any(|e| e["ph"] == "i" && e["name"] == "c: solve"));
    }
}
