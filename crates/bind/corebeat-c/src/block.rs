//! Blocks that a thread has freed in transactions, for its next allocations.
//!
//! A block is freed only when no transaction can read it any more, so blocks are freed many at a
//! time. glibc keeps 7 blocks of each size for a thread. The others go to heaps that threads share,
//! by locks, where they are merged and divided again.

use std::cell::RefCell;
use std::ffi::c_void;

/// Usable bytes of the smallest blocks, and the difference between sizes, as in glibc.
const SMALLEST: usize = 24;
const STEP: usize = 16;
/// Number of sizes, up to 264 bytes.
const SIZES: usize = 16;
/// Limit on the blocks of a size.
const BLOCKS_MAX: usize = 64;

/// Blocks of `malloc` by their sizes, none of which is in use.
struct Blocks([Vec<*mut c_void>; SIZES]);

thread_local! {
    static BLOCKS: RefCell<Blocks> = const { RefCell::new(Blocks([const { Vec::new() }; SIZES])) };
}

/// Returns a block with at least this number of bytes, as `malloc` does.
pub(crate) fn allocate(bytes: usize) -> *mut c_void {
    let size = bytes.saturating_sub(SMALLEST).div_ceil(STEP);
    let kept = BLOCKS.try_with(|blocks| blocks.borrow_mut().0.get_mut(size)?.pop());
    // SAFETY: any number of bytes is valid.
    kept.ok().flatten().unwrap_or_else(|| unsafe { libc::malloc(bytes) })
}

/// Frees a block.
///
/// # Safety
///
/// The block is from `malloc` and not in use.
pub(crate) unsafe fn free(block: *mut ()) {
    let block = block.cast();
    // SAFETY: guaranteed by the caller.
    let usable = unsafe { libc::malloc_usable_size(block) };
    let is_kept = BLOCKS.try_with(|blocks| {
        let size = usable.checked_sub(SMALLEST)? / STEP;
        let mut blocks = blocks.borrow_mut();
        let kept = blocks.0.get_mut(size).filter(|kept| kept.len() < BLOCKS_MAX)?;
        kept.push(block);
        Some(())
    });
    // Also without the list of the thread, which is ending.
    if !matches!(is_kept, Ok(Some(()))) {
        // SAFETY: guaranteed by the caller.
        unsafe { libc::free(block) };
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.0.iter().flatten() {
            // SAFETY: `free` requires that the block is from `malloc` and not in use.
            unsafe { libc::free(*block) };
        }
    }
}
