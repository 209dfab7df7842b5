//! Memory blocks for tasks. Workers keep freed blocks, because programs create and end tasks in
//! thousands.

use crate::current;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Sizes of blocks are multiples of this number of bytes.
const UNIT: usize = 16;
/// Largest block that is kept, in units.
const UNITS_MAX: usize = 64;
/// Largest number of bytes in blocks of one size that a worker keeps.
const KEPT_BYTES_MAX: usize = 640 << 10;

/// Free blocks of a worker, by size in units.
pub(crate) struct Blocks(UnsafeCell<[Vec<NonNull<u8>>; UNITS_MAX + 1]>);

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks(UnsafeCell::new([const { Vec::new() }; UNITS_MAX + 1]))
    }
}

impl Blocks {
    /// Only for the thread of the worker, and not while the result of an earlier call is in use. No
    /// code in this module calls other code meanwhile.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "see above")]
    fn of_size(&self, units: usize) -> &mut Vec<NonNull<u8>> {
        // SAFETY: by the contract above.
        unsafe { &mut (*self.0.get())[units] }
    }
}

/// Returns the layout to allocate for a requested layout, and its size in units.
#[inline(always)]
fn round(layout: Layout) -> (Layout, usize) {
    let units = layout.size().div_ceil(UNIT);
    let align = layout.align().max(align_of::<usize>());
    (Layout::from_size_align(units * UNIT, align).unwrap_or(layout), units)
}

/// Returns whether freed blocks of this layout are kept.
#[inline(always)]
fn is_kept(layout: Layout, units: usize) -> bool {
    units <= UNITS_MAX && layout.align() <= align_of::<usize>()
}

/// Allocates a block for a layout, which is not empty. Returns `None` if there is no memory.
#[inline(always)]
pub(crate) fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    let (layout, units) = round(layout);
    if is_kept(layout, units)
        && let Some(block) = current::worker().and_then(|w| w.blocks().of_size(units).pop())
    {
        return Some(block);
    }
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc(layout) })
}

/// Frees a block.
///
/// # Safety
///
/// The block is from [`allocate`] for the same layout, and is not used any more.
#[inline(always)]
pub(crate) unsafe fn release(block: NonNull<u8>, layout: Layout) {
    let (layout, units) = round(layout);
    if is_kept(layout, units)
        && let Some(worker) = current::worker()
    {
        let kept = worker.blocks().of_size(units);
        if kept.len() < KEPT_BYTES_MAX / (units * UNIT) {
            kept.push(block);
            return;
        }
    }
    // SAFETY: by the contract of this function.
    unsafe { dealloc(block.as_ptr(), layout) };
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (units, kept) in self.0.get_mut().iter_mut().enumerate() {
            for block in kept.drain(..) {
                // SAFETY: kept blocks of this size have this layout.
                unsafe {
                    let layout =
                        Layout::from_size_align_unchecked(units * UNIT, align_of::<usize>());
                    dealloc(block.as_ptr(), layout);
                }
            }
        }
    }
}
