//! Servers that adapt to their load: what such a server measures, and what it can change.

use serde::Serialize;

/// Division of the work between the threads of a server (Strebelow and Prehofer, *Analysis of Event
/// Processing Design Patterns and Their Performance Dependency on I/O Notification Mechanisms*,
/// 2012, section 3, and today's common practice).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub enum Pattern {
    /// One thread detects events, and the others process them. Needs two threads.
    HalfSyncHalfAsync,
    /// The threads take turns at detecting one event, which they process.
    LeaderFollowers,
    /// Each thread detects and processes the events of its own connections.
    #[default]
    ThreadPerCore,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] =
        [Pattern::HalfSyncHalfAsync, Pattern::LeaderFollowers, Pattern::ThreadPerCore];

    /// Returns the number of threads that only detect events.
    pub fn detectors(self) -> usize {
        usize::from(self == Pattern::HalfSyncHalfAsync)
    }
}

/// Mechanism by which a server detects events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub enum Mechanism {
    /// Edge-triggered epoll.
    #[default]
    Edge,
    /// Level-triggered epoll, one-shot, which a system call re-arms.
    OneShot,
    /// `poll`, whose interest set is in the memory of the program.
    Poll,
    /// Multishot poll requests of io_uring, where the system permits it.
    IoUring,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Mechanism; 4] =
        [Mechanism::Edge, Mechanism::OneShot, Mechanism::Poll, Mechanism::IoUring];
}

/// The properties of a server that can change while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Variant {
    /// Division of the work between the threads.
    pub pattern: Pattern,
    /// Mechanism by which events are detected.
    pub mechanism: Mechanism,
    /// Number of all threads, from 1; from 2 for [`Pattern::HalfSyncHalfAsync`].
    pub threads: usize,
}

impl Variant {
    /// Returns the number of threads that process events.
    pub fn workers(self) -> usize {
        self.threads.saturating_sub(self.pattern.detectors())
    }
}

/// Report of a server to other processes of its user, on request.
///
/// The server keeps the report in a file in memory (`memfd_create`) named [`Report::FILE`], which
/// others find in `/proc/PID/fd` and read. No process maps the file, and each number is valid
/// by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Report {
    /// The present variant.
    pub variant: Variant,
    /// Connections that are open.
    pub connections: u64,
    /// Requests since the start of the server.
    pub requests: u64,
    /// Requests per second in the last second, or since the start if that is shorter.
    pub requests_per_s: f64,
}

/// "CBSERVE" and the version of the format.
const MAGIC: u64 = u64::from_be_bytes(*b"CBSERVE1");
const WORDS: usize = 7;

impl Report {
    /// Name of the file.
    pub const FILE: &'static str = "corebeat-server";
    /// Size of the file in bytes.
    pub const BYTES: usize = WORDS * size_of::<u64>();

    /// Returns the content of the file.
    pub fn to_bytes(&self) -> [u8; Report::BYTES] {
        let place = |found: Option<usize>| found.map_or(u64::MAX, |place| place as u64);
        let Variant { pattern, mechanism, threads } = self.variant;
        let words = [
            MAGIC,
            place(Pattern::ALL.iter().position(|own| *own == pattern)),
            place(Mechanism::ALL.iter().position(|own| *own == mechanism)),
            threads as u64,
            self.connections,
            self.requests,
            self.requests_per_s.to_bits(),
        ];
        let mut bytes = [0; Report::BYTES];
        for (part, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the report in the content of a file; `None` for content that no server writes.
    pub fn from_bytes(bytes: &[u8; Report::BYTES]) -> Option<Report> {
        let word = |at: usize| {
            let part = bytes[at * size_of::<u64>()..].first_chunk();
            part.map_or(u64::MAX, |part| u64::from_ne_bytes(*part))
        };
        let place = |at| usize::try_from(word(at)).ok();
        let requests_per_s = f64::from_bits(word(6));
        let is_valid = word(0) == MAGIC && requests_per_s.is_finite() && requests_per_s >= 0.0;
        is_valid.then_some(())?;
        Some(Report {
            variant: Variant {
                pattern: *Pattern::ALL.get(place(1)?)?,
                mechanism: *Mechanism::ALL.get(place(2)?)?,
                threads: place(3)?,
            },
            connections: word(4),
            requests: word(5),
            requests_per_s,
        })
    }
}

/// Activity of a server in a span.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// Duration of the span, in nanoseconds.
    pub span_ns: u64,
    /// Variant at the end of the span.
    pub variant: Variant,
    /// The threads that run in this variant. With [`Pattern::HalfSyncHalfAsync`], the first one
    /// detects events.
    pub threads: Vec<ThreadLoad>,
}

/// Activity of one thread of a server in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ThreadLoad {
    /// Waits for events that returned at least one (wake-ups).
    pub waits: u64,
    /// Events that these waits returned.
    pub events: u64,
    /// Time in those of these waits that found events at once, in nanoseconds. With
    /// [`Pattern::LeaderFollowers`], such waits are the serial section.
    pub serial_ns: u64,
    /// Sum over these waits of the events in the queue of [`Pattern::HalfSyncHalfAsync`] after the
    /// wait.
    pub queued: u64,
    /// Requests that the thread has processed.
    pub requests: u64,
    /// Time on a CPU, in nanoseconds; `None` if the system does not report it.
    pub ran_ns: Option<u64>,
    /// Time in which the thread was ready to run but did not run (run-queue wait), in nanoseconds;
    /// `None` if the system does not report it.
    pub waited_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_returns_from_its_bytes_and_damaged_bytes_are_refused() {
        for pattern in Pattern::ALL {
            for mechanism in Mechanism::ALL {
                let variant = Variant { pattern, mechanism, threads: 3 };
                let (connections, requests) = (7, u64::MAX);
                let report = Report { variant, connections, requests, requests_per_s: 1.5 };
                assert_eq!(Report::from_bytes(&report.to_bytes()), Some(report));
                for word in [0, 1, 2, 6] {
                    let mut bytes = report.to_bytes();
                    bytes[word * 8..][..8].fill(0xff);
                    assert_eq!(Report::from_bytes(&bytes), None, "word {word}");
                }
            }
        }
        assert_eq!(Report::from_bytes(&[0; Report::BYTES]), None);
    }
}
