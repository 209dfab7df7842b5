//! Compresses and decompresses the payloads of packets.

use crate::packet::{Codec, RAW_BYTES_MAX};
use lz4_flex::block::{self, CompressTable};
#[cfg(feature = "zstd")]
use zstd::bulk::{Compressor, Decompressor};

/// The default level of zstd. It takes several times as long as LZ4.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = zstd::DEFAULT_COMPRESSION_LEVEL;

/// Compression of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4: fast.
    #[default]
    Lz4,
    /// zstd: smaller output, several times slower. Requires the feature `zstd`.
    #[cfg(feature = "zstd")]
    Zstd,
}

/// A compressor that reuses its memory.
pub(crate) enum BlockCompressor {
    None,
    Lz4(Box<CompressTable>),
    #[cfg(feature = "zstd")]
    Zstd(Box<Compressor<'static>>),
}

impl BlockCompressor {
    pub(crate) fn new(compression: Compression) -> BlockCompressor {
        match compression {
            Compression::None => BlockCompressor::None,
            Compression::Lz4 => BlockCompressor::Lz4(Box::new(CompressTable::large())),
            #[cfg(feature = "zstd")]
            // If zstd cannot allocate its context, nothing is compressed.
            Compression::Zstd => Compressor::new(ZSTD_LEVEL)
                .map_or(BlockCompressor::None, |c| BlockCompressor::Zstd(Box::new(c))),
        }
    }

    /// Compresses `raw` into `to`. Returns the codec and the number of bytes in `to`, or `None` if
    /// the output is not smaller.
    pub(crate) fn compress(&mut self, raw: &[u8], to: &mut Vec<u8>) -> Option<(Codec, usize)> {
        // LZ4 requires room for the largest possible output.
        to.resize(block::get_maximum_output_size(raw.len()), 0);
        let (codec, bytes) = match self {
            BlockCompressor::None => return None,
            BlockCompressor::Lz4(table) => {
                (Codec::Lz4, block::compress_into_with_table(raw, to, table).ok()?)
            }
            #[cfg(feature = "zstd")]
            BlockCompressor::Zstd(zstd) => {
                (Codec::Zstd, zstd.compress_to_buffer(raw, &mut to[..]).ok()?)
            }
        };
        (bytes < raw.len()).then_some((codec, bytes))
    }
}

/// Decompresses `stored`. Returns `None` if it is invalid or does not expand to `raw_bytes`.
pub(crate) fn expand(codec: Codec, stored: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    debug_assert!(raw_bytes <= RAW_BYTES_MAX);
    let mut raw = vec![0; raw_bytes];
    let expanded = match codec {
        Codec::Plain => return (stored.len() == raw_bytes).then(|| stored.to_vec()),
        Codec::Lz4 => block::decompress_into(stored, &mut raw).ok()?,
        #[cfg(not(feature = "zstd"))]
        Codec::Zstd => return None,
        #[cfg(feature = "zstd")]
        Codec::Zstd => Decompressor::new().ok()?.decompress_to_buffer(stored, &mut raw[..]).ok()?,
    };
    (expanded == raw_bytes).then_some(raw)
}

/// The reason for which [`expand`] has failed.
pub(crate) fn failure(codec: Codec) -> &'static str {
    match codec {
        Codec::Zstd if cfg!(not(feature = "zstd")) => {
            "its events are compressed by zstd, and this program was built without zstd"
        }
        _ => "compressed events are invalid",
    }
}

#[cfg(all(test, feature = "zstd"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn compression_round_trips(
            raw in prop::collection::vec(prop_oneof![4 => Just(7u8), 1 => any::<u8>()], 0..3000),
        ) {
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
                let (mut compressor, mut to) = (BlockCompressor::new(compression), Vec::new());
                // Twice, to reuse the memory.
                for _ in 0..2 {
                    if let Some((codec, bytes)) = compressor.compress(&raw, &mut to) {
                        prop_assert_eq!(expand(codec, &to[..bytes], raw.len()), Some(raw.clone()));
                        prop_assert_eq!(expand(codec, &to[..bytes], raw.len() + 1), None);
                    }
                }
            }
        }

        #[test]
        fn garbage_is_refused_or_has_the_stated_length(
            stored in prop::collection::vec(any::<u8>(), 0..300),
            raw_bytes in 0..5000usize,
        ) {
            for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd] {
                if let Some(raw) = expand(codec, &stored, raw_bytes) {
                    prop_assert_eq!(raw.len(), raw_bytes);
                }
            }
        }
    }
}
