//! Bodies of answers, and events, as they are sent. Each is compressed once, however many readers
//! it has.
//!
//! The compressed form is a part of a Deflate stream that refers to no part before it, and ends at
//! a byte. So a stream of events in gzip is the head of gzip and the same parts for all readers.

use flate2::{Compress, Compression, Crc, FlushCompress};
use std::sync::{Arc, OnceLock};

/// Head of a gzip stream without a name and a time, on an unknown system (RFC 1952).
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// An empty last block of Deflate (RFC 1951).
const LAST_BLOCK: [u8; 2] = [3, 0];
/// Room for the first compressed bytes. The buffer grows as long as it is too small.
const ROOM_BYTES: usize = 16 << 10;

/// Form in which bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// As they are.
    Plain,
    /// Compressed.
    Gzip,
}

/// A text that is sent as the body of an answer, or as an event.
#[derive(Debug, Clone)]
pub(crate) struct Body(Arc<Forms>);

#[derive(Debug)]
struct Forms {
    plain: Arc<[u8]>,
    packed: OnceLock<Arc<[u8]>>,
}

impl Body {
    pub(crate) fn new(text: impl Into<String>) -> Body {
        let plain = text.into().into_bytes().into();
        Body(Arc::new(Forms { plain, packed: OnceLock::new() }))
    }

    /// The bytes within a stream.
    pub(crate) fn part(&self, coding: Coding) -> Arc<[u8]> {
        Arc::clone(match coding {
            Coding::Plain => &self.0.plain,
            Coding::Gzip => self.0.packed.get_or_init(|| pack(&self.0.plain).into()),
        })
    }

    /// The bytes at the start of a stream.
    pub(crate) fn begin(&self, coding: Coding) -> Vec<u8> {
        let head: &[u8] = if coding == Coding::Gzip { &GZIP_HEAD } else { &[] };
        [head, &self.part(coding)].concat()
    }

    /// The bytes of a whole answer.
    pub(crate) fn whole(&self, coding: Coding) -> Vec<u8> {
        let mut bytes = self.begin(coding);
        if coding == Coding::Gzip {
            let mut crc = Crc::new();
            crc.update(&self.0.plain);
            bytes.extend(LAST_BLOCK);
            bytes.extend(crc.sum().to_le_bytes());
            bytes.extend(crc.amount().to_le_bytes());
        }
        bytes
    }
}

/// The bytes as a part of a Deflate stream.
fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut deflate = Compress::new(Compression::fast(), false);
    let mut packed = Vec::with_capacity(ROOM_BYTES);
    loop {
        let read = deflate.total_in() as usize;
        // In memory, nothing but an invalid state fails, and each state here is valid.
        let _ = deflate.compress_vec(&bytes[read..], &mut packed, FlushCompress::Full);
        // A flush that does not fill the buffer is complete.
        if packed.len() < packed.capacity() {
            return packed;
        }
        packed.reserve(packed.capacity());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    impl Body {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.plain.to_vec()).unwrap()
        }

        pub(crate) fn is_same(&self, other: &Body) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    impl PartialEq for Body {
        fn eq(&self, other: &Body) -> bool {
            self.0.plain == other.0.plain
        }
    }

    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let mut text = vec![];
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn compressed_bodies_read_back_whatever_their_length() {
        let mut random = fastrand::Rng::with_seed(7);
        for length in [0, 1, 100, ROOM_BYTES, 3 * ROOM_BYTES, 40 * ROOM_BYTES] {
            // Half of the letters are random, so that the result has about every length.
            let letter = |n: usize| if n.is_multiple_of(2) { random.alphanumeric() } else { 'x' };
            let text: String = (0..length).map(letter).collect();
            let body = Body::new(text.clone());
            assert!(unpacked(&body.whole(Coding::Gzip)) == text.as_bytes(), "{length}");
            assert!(body.whole(Coding::Plain) == text.as_bytes(), "{length}");
            assert!(Arc::ptr_eq(&body.part(Coding::Gzip), &body.part(Coding::Gzip)));
        }
    }
}
