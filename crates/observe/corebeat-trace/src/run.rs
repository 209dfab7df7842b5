//! Events with one number each, one behind the other: the first, and how far the others are from it (`packet` has the form).

use crate::packet::{Bytes, KIND_BITS, RUN_EVENTS, UNTIMED_BYTES, WIDTH_SHIFT};

/// Offsets from the first need one byte, or two, if they have no bits beyond these that are not as the sign is.
const ONE_MAX: i32 = i8::MAX as i32;
const TWO_MAX: i32 = i16::MAX as i32;

/// Where in a run the first one's number ends.
const FIRST_END: usize = UNTIMED_BYTES + 4;

/// Writes a run of these numbers, which are two at least and sixteen at most; where it ends.
///
/// # Safety
///
/// There is room for [`RUN_BYTES_MAX`](crate::packet::RUN_BYTES_MAX) bytes.
#[inline(always)]
pub(crate) unsafe fn write<const COUNT: usize>(at: *mut u8, kind: u16, values: &[u32; COUNT]) -> *mut u8 {
    const { assert!(COUNT > 1 && COUNT <= RUN_EVENTS) };
    // SAFETY: there is room.
    unsafe {
        match values[..].try_into() {
            Ok(values) => write_all(at, kind, values),
            Err(_) => write_some(at, kind, values),
        }
    }
}

/// What is before the offsets.
///
/// # Safety
///
/// There is room.
#[inline(always)]
unsafe fn write_head(at: *mut u8, kind: u16, values: &[u32], width: u16) {
    let head = kind | (values.len() as u16 - 1) << KIND_BITS | width << WIDTH_SHIFT;
    // SAFETY: there is room.
    unsafe {
        at.cast::<[u8; UNTIMED_BYTES]>().write(head.to_le_bytes());
        at.add(UNTIMED_BYTES).cast::<[u8; 4]>().write(values[0].to_le_bytes());
    }
}

/// A few: one after the other, in two bytes or four. Which of them is seldom a surprise to the processor; that one byte is enough,
/// for two cells of a thousand, often is.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
unsafe fn write_some<const COUNT: usize>(at: *mut u8, kind: u16, values: &[u32; COUNT]) -> *mut u8 {
    let offsets = values.map(|value| value.wrapping_sub(values[0]) as i32);
    // Bits that are not as the sign is.
    let bits = offsets.iter().fold(0, |bits, offset| bits | (offset ^ (offset >> 31)));
    // SAFETY: as in `write_all`.
    unsafe {
        let (width, bytes) = if bits <= TWO_MAX {
            let offsets = offsets.map(|offset| (offset as i16).to_le());
            at.add(FIRST_END - 2).cast::<[i16; COUNT]>().write_unaligned(offsets);
            (2, 2)
        } else {
            at.add(FIRST_END - 4).cast::<[i32; COUNT]>().write_unaligned(offsets.map(i32::to_le));
            (3, 4)
        };
        write_head(at, kind, values, width);
        at.add(FIRST_END + (COUNT - 1) * bytes)
    }
}

/// As many as there may be: all at a time.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
unsafe fn write_all(at: *mut u8, kind: u16, values: &[u32; RUN_EVENTS]) -> *mut u8 {
    // SAFETY: head, first and offsets are no more than there is room for. The first number's own offset is written as well, where
    // its last bytes come, and stands nowhere in the end.
    let (width, bytes) = unsafe {
        match narrow(values) {
            Narrow::One(offsets) => {
                at.add(FIRST_END - 1).cast::<[u8; RUN_EVENTS]>().write(offsets);
                (1, 1)
            }
            Narrow::Two(offsets) => {
                at.add(FIRST_END - 2).cast::<[i16; RUN_EVENTS]>().write_unaligned(offsets.map(i16::to_le));
                (2, 2)
            }
            Narrow::Four(offsets) => {
                at.add(FIRST_END - 4).cast::<[i32; RUN_EVENTS]>().write_unaligned(offsets.map(i32::to_le));
                (3, 4)
            }
        }
    };
    // SAFETY: as above.
    unsafe {
        write_head(at, kind, values, width);
        at.add(FIRST_END + (RUN_EVENTS - 1) * bytes)
    }
}

/// Offsets from the first, in as many bytes as they take.
enum Narrow {
    One([u8; RUN_EVENTS]),
    Two([i16; RUN_EVENTS]),
    Four([i32; RUN_EVENTS]),
}

/// By hand, where the compiler does most of it one by one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn narrow(values: &[u32; RUN_EVENTS]) -> Narrow {
    use std::arch::x86_64::*;
    use std::mem::transmute;
    // SAFETY: every x86-64 processor has these instructions. Arrays of numbers and vectors of as many bytes are made of one another.
    unsafe {
        let [a, b, c, d] = transmute::<[u32; RUN_EVENTS], [__m128i; 4]>(*values);
        let first = _mm_shuffle_epi32::<0>(a);
        let offsets = [a, b, c, d].map(|four| _mm_sub_epi32(four, first));
        let [a, b, c, d] = offsets;
        // They become those that are next, where they are too large.
        let two = [_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)];
        let one = _mm_packs_epi16(two[0], two[1]);
        // Bits that are not as the sign is.
        let [a, b, c, d] = offsets.map(|four| _mm_xor_si128(four, _mm_srai_epi32::<31>(four)));
        let bits = _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d));
        if _mm_movemask_epi8(_mm_cmpgt_epi32(bits, _mm_set1_epi32(ONE_MAX))) == 0 {
            Narrow::One(transmute::<__m128i, [u8; RUN_EVENTS]>(one))
        } else if _mm_movemask_epi8(_mm_cmpgt_epi32(bits, _mm_set1_epi32(TWO_MAX))) == 0 {
            Narrow::Two(transmute::<[__m128i; 2], [i16; RUN_EVENTS]>(two))
        } else {
            Narrow::Four(transmute::<[__m128i; 4], [i32; RUN_EVENTS]>(offsets))
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn narrow(values: &[u32; RUN_EVENTS]) -> Narrow {
    let offsets = values.map(|value| value.wrapping_sub(values[0]) as i32);
    // Bits that are not as the sign is.
    match offsets.iter().fold(0, |bits, offset| bits | (offset ^ (offset >> 31))) {
        0..=ONE_MAX => Narrow::One(offsets.map(|offset| offset as u8)),
        0..=TWO_MAX => Narrow::Two(offsets.map(|offset| offset as i16)),
        _ => Narrow::Four(offsets),
    }
}

/// Whether an event's first two bytes begin a run.
pub(crate) fn is_one(head: u16) -> bool {
    head >> KIND_BITS != 0
}

/// Reads what is behind a run's head: its numbers. `None`: there is no such run, or not all of it.
pub(crate) fn read(head: u16, bytes: &mut Bytes<'_>) -> Option<impl Iterator<Item = u32> + use<>> {
    let width = head >> WIDTH_SHIFT;
    let others = usize::from(head >> KIND_BITS) % RUN_EVENTS;
    if others == 0 {
        return None;
    }
    let mut values = [bytes.u32()?; RUN_EVENTS];
    for value in &mut values[1..=others] {
        *value = value.wrapping_add_signed(match width {
            1 => i32::from(bytes.u8()? as i8),
            2 => i32::from(bytes.u16()? as i16),
            3 => bytes.u32()? as i32,
            _ => return None,
        });
    }
    Some(values.into_iter().take(others + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::RUN_BYTES_MAX;
    use proptest::prelude::*;

    /// Numbers around one of them, as far as that.
    fn values() -> impl Strategy<Value = [u32; RUN_EVENTS]> {
        let far = prop::sample::select(vec![1u32, 127, 128, 129, 32_767, 32_768, 32_769, 1 << 31, u32::MAX]);
        (any::<u32>(), far, prop::array::uniform16((any::<u32>(), any::<bool>()))).prop_map(
            |(first, far, others)| {
                let mut values = others.map(|(offset, up)| {
                    let offset = if offset % 3 == 0 { far } else { offset % far };
                    if up { first.wrapping_add(offset) } else { first.wrapping_sub(offset) }
                });
                values[0] = first;
                values
            },
        )
    }

    proptest! {
        #[test]
        fn run_that_is_written_is_read_as_it_was(values in values(), few in 0..4usize, kind in 1..1024u16) {
            let mut bytes = [0xa5; RUN_BYTES_MAX + 1];
            let at = bytes.as_mut_ptr();
            // SAFETY: there is room.
            let (end, count) = unsafe {
                match few {
                    0 => (write(at, kind, &values), RUN_EVENTS),
                    1 => (write(at, kind, values.first_chunk::<2>().unwrap()), 2),
                    2 => (write(at, kind, values.first_chunk::<5>().unwrap()), 5),
                    _ => (write(at, kind, values.first_chunk::<15>().unwrap()), 15),
                }
            };
            let values = &values[..count];
            let written = end.addr() - bytes.as_ptr().addr();
            prop_assert_eq!(bytes[RUN_BYTES_MAX], 0xa5);
            let mut left = Bytes(&bytes[..written]);
            let head = left.u16().unwrap();
            prop_assert!(is_one(head));
            prop_assert_eq!(head & ((1 << KIND_BITS) - 1), kind);
            let again: Option<Vec<u32>> = read(head, &mut left).map(Iterator::collect);
            prop_assert_eq!((again.as_deref(), left.0.len()), (Some(values), 0));
            // One byte less is not enough.
            prop_assert!(read(head, &mut Bytes(&bytes[UNTIMED_BYTES..written - 1])).is_none());
            // There are no runs of one, nor of offsets without bytes.
            let others = ((RUN_EVENTS - 1) as u16) << KIND_BITS;
            prop_assert!(read(head & !others, &mut Bytes(&bytes[UNTIMED_BYTES..written])).is_none());
            prop_assert!(read(kind | others, &mut Bytes(&bytes[UNTIMED_BYTES..written])).is_none());
        }
    }
}
