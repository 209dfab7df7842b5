//! Payloads, smaller.

use crate::packet::{Codec, RAW_BYTES_MAX};
use lz4_flex::block::{self, CompressTable};
use zstd::bulk::{Compressor, Decompressor};

/// The level of zstd that its authors set: a few times the time of LZ4.
const ZSTD_LEVEL: i32 = zstd::DEFAULT_COMPRESSION_LEVEL;

/// How events are compressed before they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are.
    None,
    /// By LZ4: fast.
    #[default]
    Lz4,
    /// By zstd: smaller, in a few times the time.
    Zstd,
}

/// Compresses, with memory that is used again.
pub(crate) enum Press {
    None,
    Lz4(Box<CompressTable>),
    Zstd(Box<Compressor<'static>>),
}

impl Press {
    pub(crate) fn new(compression: Compression) -> Press {
        match compression {
            Compression::None => Press::None,
            Compression::Lz4 => Press::Lz4(Box::new(CompressTable::large())),
            // Without memory for it, nothing is compressed.
            Compression::Zstd => {
                Compressor::new(ZSTD_LEVEL).map_or(Press::None, |c| Press::Zstd(Box::new(c)))
            }
        }
    }

    /// Compresses into `to`. How, and how many bytes it is then; `None`: it does not get smaller.
    pub(crate) fn press(&mut self, raw: &[u8], to: &mut Vec<u8>) -> Option<(Codec, usize)> {
        // LZ4 wants room for the worst.
        to.resize(block::get_maximum_output_size(raw.len()), 0);
        let (codec, bytes) = match self {
            Press::None => return None,
            Press::Lz4(table) => (Codec::Lz4, block::compress_into_with_table(raw, to, table).ok()?),
            Press::Zstd(press) => (Codec::Zstd, press.compress_to_buffer(raw, &mut to[..]).ok()?),
        };
        (bytes < raw.len()).then_some((codec, bytes))
    }
}

/// Undoes it. `None`: these bytes are no such thing, or of another length.
pub(crate) fn expand(codec: Codec, stored: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    debug_assert!(raw_bytes <= RAW_BYTES_MAX);
    let mut raw = vec![0; raw_bytes];
    let expanded = match codec {
        Codec::Plain => return (stored.len() == raw_bytes).then(|| stored.to_vec()),
        Codec::Lz4 => block::decompress_into(stored, &mut raw).ok()?,
        Codec::Zstd => Decompressor::new().ok()?.decompress_to_buffer(stored, &mut raw[..]).ok()?,
    };
    (expanded == raw_bytes).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_compressed_is_what_it_was(
            raw in prop::collection::vec(prop_oneof![4 => Just(7u8), 1 => any::<u8>()], 0..3000),
        ) {
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
                let (mut press, mut to) = (Press::new(compression), Vec::new());
                // Twice, with the same memory.
                for _ in 0..2 {
                    if let Some((codec, bytes)) = press.press(&raw, &mut to) {
                        prop_assert_eq!(expand(codec, &to[..bytes], raw.len()), Some(raw.clone()));
                        prop_assert_eq!(expand(codec, &to[..bytes], raw.len() + 1), None);
                    }
                }
            }
        }

        #[test]
        fn garbage_is_refused_or_fits(stored in prop::collection::vec(any::<u8>(), 0..300), raw_bytes in 0..5000usize) {
            for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd] {
                if let Some(raw) = expand(codec, &stored, raw_bytes) {
                    prop_assert_eq!(raw.len(), raw_bytes);
                }
            }
        }
    }
}
