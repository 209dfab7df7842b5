//! Memory for tasks: freed blocks are kept by workers, because tasks come and go in thousands.

use crate::current;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Blocks are multiples of this, in bytes.
const UNIT: usize = 64;
/// Larger blocks are not kept.
const UNITS_MAX: usize = 16;
/// A worker keeps at most so many of a size.
const KEPT_MAX: usize = 4096;

/// A worker's free blocks, by units.
#[derive(Default)]
pub(crate) struct Blocks(UnsafeCell<[Vec<NonNull<u8>>; UNITS_MAX + 1]>);

impl Blocks {
    /// Only for the worker's thread, and not while it is borrowed: nothing here calls others.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "see above")]
    fn of_size(&self, units: usize) -> &mut Vec<NonNull<u8>> {
        // SAFETY: as said above.
        unsafe { &mut (*self.0.get())[units] }
    }
}

/// What is asked of the system for a layout, and how many units that is.
#[inline(always)]
fn round(layout: Layout) -> (Layout, usize) {
    let units = layout.size().div_ceil(UNIT);
    let align = layout.align().max(align_of::<usize>());
    (Layout::from_size_align(units * UNIT, align).unwrap_or(layout), units)
}

/// Only usual blocks are kept.
#[inline(always)]
fn is_kept(layout: Layout, units: usize) -> bool {
    units <= UNITS_MAX && layout.align() <= align_of::<usize>()
}

/// A block for this layout, which is not empty; `None` if there is no memory.
#[inline(always)]
pub(crate) fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    let (layout, units) = round(layout);
    if is_kept(layout, units)
        && let Some(block) = current::worker().and_then(|w| w.blocks().of_size(units).pop())
    {
        return Some(block);
    }
    // SAFETY: not empty.
    NonNull::new(unsafe { alloc(layout) })
}

/// Gives a block back.
///
/// # Safety
///
/// It is from [`allocate`] for the same layout, and not used any more.
#[inline(always)]
pub(crate) unsafe fn release(block: NonNull<u8>, layout: Layout) {
    let (layout, units) = round(layout);
    if is_kept(layout, units)
        && let Some(worker) = current::worker()
    {
        let kept = worker.blocks().of_size(units);
        if kept.len() < KEPT_MAX {
            kept.push(block);
            return;
        }
    }
    // SAFETY: the caller's word.
    unsafe { dealloc(block.as_ptr(), layout) };
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (units, kept) in self.0.get_mut().iter_mut().enumerate() {
            for block in kept.drain(..) {
                // SAFETY: kept blocks have this layout.
                unsafe {
                    let layout = Layout::from_size_align_unchecked(units * UNIT, align_of::<usize>());
                    dealloc(block.as_ptr(), layout);
                }
            }
        }
    }
}
