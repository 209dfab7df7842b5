//! Runs: consecutive events with one number each, stored as the first number and the offsets of
//! the others from it (`packet` defines the format).

use crate::packet::{Bytes, KIND_BITS, RUN_EVENTS, UNTIMED_BYTES, WIDTH_SHIFT};

/// An offset fits into one byte, or two, if its bits above these limits equal its sign bit.
const ONE_MAX: i32 = i8::MAX as i32;
const TWO_MAX: i32 = i16::MAX as i32;

/// End of the first number, in bytes from the begin of the run.
const FIRST_END: usize = UNTIMED_BYTES + 4;

/// Writes a run of two to sixteen numbers. Returns the end of the run.
///
/// # Safety
///
/// There is room for [`RUN_BYTES_MAX`](crate::packet::RUN_BYTES_MAX) bytes.
#[inline(always)]
pub(crate) unsafe fn write<const COUNT: usize>(
    at: *mut u8,
    kind: u16,
    values: &[u32; COUNT],
) -> *mut u8 {
    const { assert!(COUNT > 1 && COUNT <= RUN_EVENTS) };
    // SAFETY: there is room.
    unsafe {
        match values[..].try_into() {
            Ok(values) => write_all(at, kind, values),
            Err(_) => write_some(at, kind, values),
        }
    }
}

/// Writes the part before the offsets.
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

/// Writes a short run, one number after the other, with two or four bytes each. A test for
/// one-byte offsets would be mispredicted often: for example, two of a thousand cells are rarely
/// close. The test for two bytes is predictable.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
unsafe fn write_some<const COUNT: usize>(at: *mut u8, kind: u16, values: &[u32; COUNT]) -> *mut u8 {
    let offsets = values.map(|value| value.wrapping_sub(values[0]) as i32);
    // Bits that differ from the sign bit.
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

/// Writes a run of full length with vector instructions.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
unsafe fn write_all(at: *mut u8, kind: u16, values: &[u32; RUN_EVENTS]) -> *mut u8 {
    // SAFETY: head, first number and offsets fit into the room. The offset of the first number is
    // written, too; the first number then overwrites it.
    let (width, bytes) = unsafe {
        match narrow(values) {
            Narrow::One(offsets) => {
                at.add(FIRST_END - 1).cast::<[u8; RUN_EVENTS]>().write(offsets);
                (1, 1)
            }
            Narrow::Two(offsets) => {
                at.add(FIRST_END - 2)
                    .cast::<[i16; RUN_EVENTS]>()
                    .write_unaligned(offsets.map(i16::to_le));
                (2, 2)
            }
            Narrow::Four(offsets) => {
                at.add(FIRST_END - 4)
                    .cast::<[i32; RUN_EVENTS]>()
                    .write_unaligned(offsets.map(i32::to_le));
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

/// Offsets from the first number, in the smallest sufficient width.
enum Narrow {
    One([u8; RUN_EVENTS]),
    Two([i16; RUN_EVENTS]),
    Four([i32; RUN_EVENTS]),
}

/// Written with intrinsics, because the compiler vectorises only a part of the generic version.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn narrow(values: &[u32; RUN_EVENTS]) -> Narrow {
    use std::arch::x86_64::*;
    use std::mem::transmute;
    // SAFETY: every x86-64 processor has these instructions. The arrays and the vectors have the
    // same size and accept every bit pattern.
    unsafe {
        let [a, b, c, d] = transmute::<[u32; RUN_EVENTS], [__m128i; 4]>(*values);
        let first = _mm_shuffle_epi32::<0>(a);
        let offsets = [a, b, c, d].map(|four| _mm_sub_epi32(four, first));
        let [a, b, c, d] = offsets;
        // Saturates offsets that are too large.
        let two = [_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)];
        let one = _mm_packs_epi16(two[0], two[1]);
        // Bits that differ from the sign bit.
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
    // Bits that differ from the sign bit.
    match offsets.iter().fold(0, |bits, offset| bits | (offset ^ (offset >> 31))) {
        0..=ONE_MAX => Narrow::One(offsets.map(|offset| offset as u8)),
        0..=TWO_MAX => Narrow::Two(offsets.map(|offset| offset as i16)),
        _ => Narrow::Four(offsets),
    }
}

/// Whether the first two bytes of an event start a run.
pub(crate) fn is_one(head: u16) -> bool {
    head >> KIND_BITS != 0
}

/// Reads the numbers after a run's head. Returns `None` if the run is invalid or incomplete.
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

    /// Numbers near the first one, at distances around the limits of the widths.
    fn values() -> impl Strategy<Value = [u32; RUN_EVENTS]> {
        let far = prop::sample::select(vec![
            1u32,
            127,
            128,
            129,
            32_767,
            32_768,
            32_769,
            1 << 31,
            u32::MAX,
        ]);
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
        fn written_run_is_read_back(values in values(), few in 0..4usize, kind in 1..1024u16) {
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
            // A run without its last byte is incomplete.
            prop_assert!(read(head, &mut Bytes(&bytes[UNTIMED_BYTES..written - 1])).is_none());
            // Runs of one number, and offsets without width, are invalid.
            let others = ((RUN_EVENTS - 1) as u16) << KIND_BITS;
            let body = &bytes[UNTIMED_BYTES..written];
            prop_assert!(read(head & !others, &mut Bytes(body)).is_none());
            prop_assert!(read(kind | others, &mut Bytes(body)).is_none());
        }
    }
}
