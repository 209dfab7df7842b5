//! Export of a timeline to Chrome's Trace Event Format, which Perfetto (ui.perfetto.dev) opens.

use crate::Timeline;
use corebeat_chrome::{ChromeWriter, Scope, Track};
use std::io::{self, Write};

impl Timeline {
    /// Writes the timeline as one JSON object: a track for each CPU, a slice for each stay of a
    /// thread on a CPU, and an instant for each phase.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let mut writer = ChromeWriter::new(out)?;
        writer.process_name("simulated machine")?;
        for (c, spans) in self.cpus.iter().enumerate() {
            let track = c as u32 + 1;
            writer.track_name(track, &format!("CPU {c}"))?;
            for span in spans {
                let (program, thread) = &self.threads[span.thread];
                let program = &self.programs[*program];
                let duration_ns = span.to_ns - span.from_ns;
                let name = format!("{program} {thread}");
                writer.slice(Track::Thread(track), span.from_ns, duration_ns, &name, program)?;
            }
        }
        for (at_ns, program, phase) in &self.phases {
            let name = format!("{}: {phase}", self.programs[*program]);
            writer.instant(1, *at_ns, Scope::Global, &name, None::<()>)?;
        }
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::timeline::sample::timeline;

    #[test]
    fn chrome_export_has_every_stay_and_phase() {
        let mut text = Vec::new();
        timeline().write_chrome(&mut text).unwrap();
        let object: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = object["traceEvents"].as_array().unwrap();
        let stays: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(stays.len(), 4);
        assert_eq!(stays[0]["name"], "a<b thread \"0\"");
        assert_eq!((stays[3]["ts"].as_f64(), stays[3]["dur"].as_f64()), (Some(8.0), Some(2.0)));
        assert!(events.iter().any(|e| e["ph"] == "i" && e["name"] == "c: solve"));
    }
}
