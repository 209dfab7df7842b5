//! Blocks that a thread has freed in transactions, for its next allocations.
//!
//! A block is freed only when no transaction can read it any more, so blocks are freed many at a
//! time. glibc keeps 7 blocks of each size for a thread. The others go to heaps that threads share,
//! by locks, where they are merged and divided again.
//!
//! Only blocks of glibc are kept: other implementations of `malloc` have their own ways, or find
//! errors, and glibc finds the sizes of its own blocks only.

use crate::stm::die;
use std::cell::RefCell;
use std::ffi::c_void;

/// Usable bytes of the smallest blocks, and the difference between sizes, as in glibc.
const SMALLEST: usize = 24;
const STEP: usize = 16;
/// Number of sizes, up to 264 bytes.
const SIZES: usize = 16;
/// Limit on the blocks of a size.
const BLOCKS_MAX: usize = 64;

/// Blocks of `malloc` by their sizes, none of which is in use. The second word of each is [`mark`].
struct Blocks([Vec<*mut c_void>; SIZES]);

impl Blocks {
    const fn new() -> Blocks {
        Blocks([const { Vec::new() }; SIZES])
    }
}

thread_local! {
    static BLOCKS: RefCell<Blocks> = const { RefCell::new(Blocks::new()) };
}

/// A value that no program has.
fn mark() -> usize {
    static MARK: u8 = 0;
    (&raw const MARK).addr()
}

/// # Safety
///
/// The block exists and has two words.
unsafe fn second(block: *mut c_void) -> *mut usize {
    // SAFETY: guaranteed by the caller.
    unsafe { block.cast::<usize>().add(1) }
}

/// Returns a block with at least this number of bytes, as `malloc` does.
pub(crate) fn allocate(bytes: usize) -> *mut c_void {
    let size = bytes.saturating_sub(SMALLEST).div_ceil(STEP);
    let kept = BLOCKS.try_with(|blocks| {
        let block = blocks.borrow_mut().0.get_mut(size)?.pop()?;
        // SAFETY: it is not in use.
        unsafe { second(block).write(0) };
        Some(block)
    });
    // SAFETY: any number of bytes is valid.
    kept.ok().flatten().unwrap_or_else(|| unsafe { libc::malloc(bytes) })
}

/// Frees a block.
///
/// # Safety
///
/// The block is from `malloc` and not in use.
pub(crate) unsafe fn free(block: *mut ()) {
    // SAFETY: guaranteed by the caller.
    let size =
        unsafe { usable(block) }.and_then(|usable| Some(usable.checked_sub(SMALLEST)? / STEP));
    let block = block.cast();
    let is_kept = BLOCKS.try_with(|blocks| {
        let mut blocks = blocks.borrow_mut();
        let kept = blocks.0.get_mut(size?)?;
        // SAFETY: such blocks have at least 24 bytes. Volatile, because they may be uninitialized.
        let second = unsafe { second(block) };
        // SAFETY: as above.
        if unsafe { second.read_volatile() } == mark() {
            die("a block was freed twice in transactions: call stm_free once for each block");
        }
        if kept.len() == BLOCKS_MAX {
            return None;
        }
        // SAFETY: as above.
        unsafe { second.write(mark()) };
        kept.push(block);
        Some(())
    });
    // Also without the list of the thread, which is ending.
    if !matches!(is_kept, Ok(Some(()))) {
        // SAFETY: guaranteed by the caller.
        unsafe { libc::free(block) };
    }
}

/// Frees the blocks that this thread has kept.
pub(crate) fn free_kept() {
    let _ = BLOCKS.try_with(|blocks| blocks.replace(Blocks::new()));
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.0.iter().flatten() {
            // SAFETY: `free` requires that the block is from `malloc` and not in use.
            unsafe {
                second(*block).write(0);
                libc::free(*block);
            }
        }
    }
}

/// Returns the number of bytes of a block, at least as many as were requested, if glibc has
/// allocated it.
///
/// # Safety
///
/// The block is from `malloc` and was not freed.
pub(crate) unsafe fn usable(block: *mut ()) -> Option<usize> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if glibc::has_malloc() {
        // SAFETY: guaranteed by the caller.
        return Some(unsafe { libc::malloc_usable_size(block.cast()) });
    }
    let _ = block;
    None
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_void;
    use std::mem::MaybeUninit;
    use std::ptr::null_mut;
    use std::sync::OnceLock;

    /// Whether `malloc` is that of glibc, not one that replaces it, as programs, preloaded
    /// libraries and sanitizers do.
    pub(super) fn has_malloc() -> bool {
        static HAS: OnceLock<bool> = OnceLock::new();
        *HAS.get_or_init(|| {
            let functions = [
                libc::gnu_get_libc_version as *const c_void,
                libc::malloc as *const c_void,
                libc::malloc_usable_size as *const c_void,
            ];
            let [glibc, others @ ..] = functions.map(object);
            !glibc.is_null() && others.iter().all(|other| *other == glibc)
        })
    }

    /// The address of the program or library that contains a function, or null.
    fn object(function: *const c_void) -> *mut c_void {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `info` has room for the result.
        match unsafe { libc::dladdr(function, info.as_mut_ptr()) } {
            0 => null_mut(),
            // SAFETY: a result other than 0 means success.
            _ => unsafe { info.assume_init() }.dli_fbase,
        }
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::thread;

    fn count() -> usize {
        BLOCKS.with_borrow(|blocks| blocks.0.iter().map(Vec::len).sum())
    }

    #[test]
    fn kept_blocks_are_large_enough_and_in_use_once() {
        assert!(glibc::has_malloc());
        for bytes in (0..600).chain([usize::MAX]) {
            for requested in [bytes, bytes / 2, bytes.saturating_sub(SMALLEST)] {
                let freed = allocate(bytes);
                if freed.is_null() {
                    assert_eq!(bytes, usize::MAX);
                    continue;
                }
                // SAFETY: the block is from `malloc`, and freed once.
                unsafe { free(freed.cast()) };
                let blocks: Vec<*mut c_void> = (0..4).map(|_| allocate(requested)).collect();
                assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len());
                for block in blocks {
                    // SAFETY: as above.
                    unsafe {
                        assert!(usable(block.cast()).unwrap() >= requested);
                        block.cast::<u8>().write_bytes(0xff, requested);
                        free(block.cast());
                    }
                }
            }
        }
    }

    #[test]
    fn thread_keeps_some_blocks_until_it_frees_them() {
        thread::spawn(|| {
            let blocks: Vec<*mut c_void> = (0..2 * BLOCKS_MAX).map(|_| allocate(40)).collect();
            for block in &blocks {
                // SAFETY: the block is from `malloc`, and freed once.
                unsafe { free(block.cast()) };
            }
            assert_eq!(count(), BLOCKS_MAX);
            assert!(blocks.contains(&allocate(40)));
            assert_eq!(count(), BLOCKS_MAX - 1);
            free_kept();
            assert_eq!(count(), 0);
            // SAFETY: as above. The end of the thread frees the block.
            unsafe { free(allocate(264).cast()) };
            assert_eq!(count(), 1);
            // SAFETY: as above.
            unsafe { free(allocate(281).cast()) };
            assert_eq!(count(), 1);
        })
        .join()
        .unwrap();
    }
}
