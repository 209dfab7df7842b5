//! Reading of truncated, corrupted and hostile files.

use corebeat_trace::{
    Compression, Ending, Error, Event, Options, Reader, Timeline, WhenFull, emit, emit_all,
};
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::OnceLock;

/// Cases per minute of the soak run; the normal run has some thousands.
const CASES_PER_MINUTE: u64 = 1_000_000;

/// Threads of a trace, and the number of steps of each.
const STREAMS: u32 = 6;
const STEPS: u32 = 25;
/// Values that each thread emits with one call: runs of each length, and a single event.
const PLACES: [u32; 31] = {
    let mut places = [7; 31];
    // Distant values take more bytes.
    (places[18], places[25]) = (7_000, 7_000_000);
    places
};
const EVENTS: u64 = STREAMS as u64 * (2 * STEPS as u64 + PLACES.len() as u64);

#[derive(Event)]
struct Step {
    number: u32,
    what: &'static str,
}

#[derive(Event)]
#[event(untimed)]
struct Tick;

#[derive(Event)]
#[event(untimed)]
struct Visited {
    place: u32,
}

/// Small traces with every feature, one for each compression.
fn traces() -> &'static [Vec<u8>] {
    static TRACES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    TRACES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.cbt");
        let make = |compression| {
            let options = Options {
                collectors: 0,
                buffer_bytes: 0,
                compression,
                when_full: WhenFull::Wait,
                ..Options::default()
            };
            let trace = options.create(&path).unwrap();
            trace.install().unwrap();
            for _ in 0..STREAMS {
                let all = || {
                    for number in 0..STEPS {
                        emit(&Step { number, what: "step" });
                        emit(&Tick);
                    }
                    emit_all::<Visited, _>(&PLACES, |place| *place);
                };
                std::thread::scope(|scope| scope.spawn(all).join().unwrap());
            }
            trace.finish().unwrap();
            std::fs::read(&path).unwrap()
        };
        [Compression::None, Compression::Lz4, Compression::Zstd].into_iter().map(make).collect()
    })
}

/// Reads a whole trace. Returns the number of events, and the ending.
fn read(bytes: &[u8]) -> Result<(u64, Ending), Error> {
    let mut reader = Reader::new(bytes)?;
    let mut events = 0;
    while let Some(packet) = reader.next_packet()? {
        for event in packet.events() {
            assert_eq!(event.values().count(), event.kind().fields().len());
            events += 1;
        }
    }
    Ok((events, reader.ending().expect("the reader has reached the end").clone()))
}

/// As [`read`], sorted by time. A timeline may end earlier, at a packet with a correct checksum
/// and invalid contents.
fn read_timeline(bytes: &[u8], is_honest: bool) -> Result<u64, Error> {
    let mut timeline = Timeline::new(Cursor::new(bytes))?;
    let (mut events, mut last_ns) = (0, 0);
    while let Some(event) = timeline.next_event()? {
        assert!(!is_honest || event.time_ns() >= last_ns, "times never decrease");
        last_ns = event.time_ns();
        events += 1;
    }
    Ok(events)
}

#[test]
fn trace_is_read_the_same_in_both_orders() {
    for bytes in traces() {
        let (events, ending) = read(bytes).unwrap();
        assert_eq!((events, ending.is_complete()), (EVENTS, true));
        assert_eq!(read_timeline(bytes, true).unwrap(), EVENTS);
    }
}

#[test]
fn truncated_trace_is_read_up_to_its_last_complete_packet() {
    let bytes = &traces()[1];
    let (mut whole, mut last_events) = (0, 0);
    for length in 16..bytes.len() {
        let (events, ending) = read(&bytes[..length]).unwrap();
        let Ending::Unfinished { whole_bytes } = ending else { panic!("{ending}") };
        assert!(whole_bytes >= whole && whole_bytes as usize <= length && events >= last_events);
        if whole_bytes == whole {
            assert_eq!(events, last_events);
        }
        (whole, last_events) = (whole_bytes, events);
    }
    assert!(last_events == EVENTS);
    // After a power loss: the file has its full length, and zeros instead of its contents.
    let mut zeros = bytes[..whole as usize].to_vec();
    zeros.resize(bytes.len() + 4096, 0);
    let (events, ending) = read(&zeros).unwrap();
    assert_eq!(events, last_events);
    assert_eq!(ending, Ending::Damaged { at_byte: whole, why: "no packet begins here" });
}

#[test]
fn input_that_is_not_a_trace_is_refused() {
    let trace = &traces()[0];
    assert!(matches!(read(b""), Err(Error::NotATrace)));
    assert!(matches!(read(b"corebeat"), Err(Error::NotATrace)));
    assert!(matches!(read(&trace[..15]), Err(Error::NotATrace)));
    let mut later = trace.clone();
    later[8] = 9;
    assert!(matches!(read(&later), Err(Error::Version { found: 9 })));
    for at in [0, 12] {
        let mut other = trace.clone();
        other[at] ^= 1;
        assert!(matches!(read(&other), Err(Error::NotATrace)));
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let bytes = &traces()[1];
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        if at < 16 * 8 {
            assert!(read(&flipped).is_err(), "bit {at}");
            continue;
        }
        let (events, ending) = read(&flipped).unwrap();
        assert!(events <= EVENTS && !ending.is_complete(), "bit {at}: {events} {ending}");
    }
}

/// Corrects the checksums of everything that looks like a packet, so that the reader decodes it.
fn seal(bytes: &mut [u8]) {
    let mut at = 16;
    while let Some(header) = bytes.get(at..at + 24) {
        let span = if header[4] == 3 { 64 } else { 0 };
        let stored = u32::from_le_bytes(header[12..16].try_into().unwrap()) as usize;
        let Some(end) = stored.checked_add(at + 24 + span).filter(|end| *end <= bytes.len()) else {
            return;
        };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[at..at + 20]);
        hasher.update(&bytes[at + 24..end]);
        bytes[at + 20..at + 24].copy_from_slice(&hasher.finalize().to_le_bytes());
        at = end;
    }
}

#[test]
fn unknown_header_values_with_a_correct_checksum_are_refused() {
    // The reserved bytes and the codec of the first packet, which contains no events.
    for (at, why) in
        [(16 + 6, "reserved field"), (16 + 7, "reserved field"), (16 + 5, "is compressed")]
    {
        let mut bytes = traces()[0].clone();
        bytes[at] = 1;
        seal(&mut bytes);
        let (events, ending) = read(&bytes).unwrap();
        assert!(events == 0 && ending.to_string().contains(why), "{ending}");
    }
}

/// Corrupts a trace at random and reads it: reading must not panic, and its memory is bounded.
fn corrupt_and_read(random: &mut fastrand::Rng) {
    let traces = traces();
    let mut bytes = traces[random.usize(..traces.len())].clone();
    // Short traces are read faster.
    if random.u8(..4) != 3 {
        bytes.truncate(random.usize(400..1200));
    }
    for _ in 0..random.u8(..8) {
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            2 => bytes.truncate(at.max(1)),
            3 => {
                // An extreme length or number.
                let worst = [u32::MAX, 0, 1 << 31, 1 << 20, (1 << 20) + 1][random.usize(..5)];
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&worst.to_le_bytes()[..end - at]);
            }
            _ => {
                let (from, length) = (random.usize(..bytes.len()), random.usize(..200));
                let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    if random.u8(..4) != 3 {
        seal(&mut bytes);
    }
    let _ = read(&bytes);
    let _ = read_timeline(&bytes, false);
}

proptest! {
    #[test]
    fn garbage_is_not_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(read(&bytes).is_err());
        // After a valid header, the trace ends immediately.
        let header = traces()[0][..16].to_vec();
        let (events, ending) = read(&[header, bytes].concat()).unwrap();
        prop_assert!(events == 0 && !ending.is_complete());
    }
}

#[test]
fn random_corruption_is_harmless() {
    let minutes: Option<u64> = std::env::var("COREBEAT_SOAK").ok().and_then(|m| m.parse().ok());
    let cases = minutes.map_or(5_000, |m| (m.max(1) * CASES_PER_MINUTE).max(10_000_000));
    let seed: u64 = std::env::var("COREBEAT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for case in 0..cases {
        let mut random = fastrand::Rng::with_seed(seed.rotate_left(32) ^ case);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            corrupt_and_read(&mut random);
        }));
        assert!(
            result.is_ok(),
            "case {case} of seed {seed}: COREBEAT_SEED={seed} cargo test -p corebeat-trace random"
        );
    }
}
