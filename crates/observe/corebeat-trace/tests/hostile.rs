//! Files that lie.

use corebeat_trace::{
    Compression, Ending, Error, Event, Options, Reader, Timeline, Trace, WhenFull, emit, emit_all,
};
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::OnceLock;

/// Cases of the long run, for each minute that it may take; without it, some thousands.
const CASES_PER_MINUTE: u64 = 1_000_000;

/// Threads of a trace, and how much each does.
const STREAMS: u32 = 6;
const STEPS: u32 = 25;
/// What each says in one go: in runs of each length, and one by itself.
const PLACES: [u32; 31] = {
    let mut places = [7; 31];
    // Far from the others, and so in more bytes.
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

/// Small traces with all that there is, one for each way to compress.
fn traces() -> &'static [Vec<u8>] {
    static TRACES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    TRACES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.cbt");
        let make = |compression| {
            let options = Options::default()
                .collectors(0)
                .buffer_bytes(0)
                .compression(compression)
                .when_full(WhenFull::Wait);
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

/// Reads all there is. How many events, and how it ended.
fn read(bytes: &[u8]) -> Result<(u64, Ending), Error> {
    let mut reader = Reader::new(bytes)?;
    let mut events = 0;
    while let Some(packet) = reader.next_packet()? {
        for event in packet.events() {
            assert_eq!(event.values().count(), event.kind().fields().len());
            events += 1;
        }
    }
    Ok((events, reader.ending().expect("it has ended").clone()))
}

/// The same in the order of time. A timeline may end earlier, where a packet is whole and makes no sense.
fn read_timeline(bytes: &[u8], is_honest: bool) -> Result<u64, Error> {
    let mut timeline = Timeline::new(Cursor::new(bytes))?;
    let (mut events, mut last_ns) = (0, 0);
    while let Some(event) = timeline.next_event()? {
        assert!(!is_honest || event.time_ns() >= last_ns, "time goes on");
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
fn trace_cut_anywhere_is_read_up_to_its_last_whole_packet() {
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
    // Power was lost: the file is as long as it was to be, without what was to be there.
    let mut zeros = bytes[..whole as usize].to_vec();
    zeros.resize(bytes.len() + 4096, 0);
    let (events, ending) = read(&zeros).unwrap();
    assert_eq!(events, last_events);
    assert_eq!(ending, Ending::Damaged { at_byte: whole, why: "no packet begins here" });
}

#[test]
fn what_is_no_trace_is_refused() {
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
fn any_bit_that_flips_is_noticed() {
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

/// Makes the checksums of what looks like packets right, so that what is in them is looked at.
fn seal(bytes: &mut [u8]) {
    let mut at = 16;
    while let Some(header) = bytes.get(at..at + 24) {
        let span = if header[4] == 3 { 64 } else { 0 };
        let stored = u32::from_le_bytes(header[12..16].try_into().unwrap()) as usize;
        let Some(end) = stored.checked_add(at + 24 + span).filter(|end| *end <= bytes.len()) else { return };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[at..at + 20]);
        hasher.update(&bytes[at + 24..end]);
        bytes[at + 20..at + 24].copy_from_slice(&hasher.finalize().to_le_bytes());
        at = end;
    }
}

#[test]
fn header_with_something_unknown_is_refused_though_its_checksum_is_right() {
    // Of the first packet, which is no events: bytes that say nothing yet, and how it is compressed.
    for (at, why) in
        [(16 + 6, "has something unknown"), (16 + 7, "has something unknown"), (16 + 5, "never is")]
    {
        let mut bytes = traces()[0].clone();
        bytes[at] = 1;
        seal(&mut bytes);
        let (events, ending) = read(&bytes).unwrap();
        assert!(events == 0 && ending.to_string().contains(why), "{ending}");
    }
}

/// Does something bad to a trace, and reads it: nothing panics, and what is held is bounded.
fn attack(random: &mut impl FnMut() -> u64) {
    let traces = traces();
    let mut bytes = traces[random() as usize % traces.len()].clone();
    // Reading a shorter one takes less time.
    if random() % 4 != 3 {
        bytes.truncate(400 + random() as usize % 800);
    }
    for _ in 0..random() % 8 {
        let at = random() as usize % bytes.len();
        match random() % 5 {
            0 => bytes[at] ^= 1 << (random() % 8),
            1 => bytes[at] = random() as u8,
            2 => bytes.truncate(at.max(1)),
            3 => {
                // A length, or a number, at its worst.
                let worst = [u32::MAX, 0, 1 << 31, 1 << 20, (1 << 20) + 1][random() as usize % 5];
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&worst.to_le_bytes()[..end - at]);
            }
            _ => {
                let (from, length) = (random() as usize % bytes.len(), random() as usize % 200);
                let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    if random() % 4 != 3 {
        seal(&mut bytes);
    }
    let _ = read(&bytes);
    let _ = read_timeline(&bytes, false);
}

proptest! {
    #[test]
    fn garbage_is_no_trace(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(read(&bytes).is_err());
        // Behind a good header, it ends at once.
        let header = traces()[0][..16].to_vec();
        let (events, ending) = read(&[header, bytes].concat()).unwrap();
        prop_assert!(events == 0 && !ending.is_complete());
    }
}

#[test]
fn random_attacks_do_no_harm() {
    let minutes: Option<u64> = std::env::var("COREBEAT_SOAK").ok().and_then(|m| m.parse().ok());
    let cases = minutes.map_or(5_000, |m| (m.max(1) * CASES_PER_MINUTE).max(10_000_000));
    let seed: u64 = std::env::var("COREBEAT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for case in 0..cases {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(case);
        // SplitMix64.
        let mut random = move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let attacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(&mut random)));
        assert!(
            attacked.is_ok(),
            "case {case} of seed {seed}: COREBEAT_SEED={seed} cargo test -p corebeat-trace random"
        );
    }
}

#[test]
fn trace_without_events_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    Trace::create(&path).unwrap().finish().unwrap();
    let (events, ending) = read(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((events, ending.to_string().as_str()), (0, "complete"));
}
