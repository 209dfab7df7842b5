//! The object that a task waits for, in one word of its header, for dumps and the search for
//! deadlocks.
//!
//! | word | object |
//! | --- | --- |
//! | 0 | none |
//! | address | this stream |
//! | address + 1 | this set |
//! | 4 times a number, + 2 | the end of the task with this number |

use crate::set::SetCore;
use crate::stream::Core;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;

const SET: usize = 1;
const TASK: usize = 2;
const TAG_BITS: u32 = 2;
const TAGS: usize = (1 << TAG_BITS) - 1;

const _: () = assert!(align_of::<Core>() > TAGS && align_of::<SetCore>() > TAGS);

/// An object, or none.
#[derive(Clone, Copy)]
pub(crate) struct Object(*mut ());

impl Object {
    pub(crate) const NONE: Object = Object(ptr::null_mut());

    #[inline(always)]
    pub(crate) fn of_stream(core: *const Core) -> Object {
        Object(core.cast_mut().cast())
    }

    #[inline(always)]
    pub(crate) fn of_set(set: *const SetCore) -> Object {
        Object(set.cast_mut().cast::<()>().map_addr(|address| address | SET))
    }

    #[inline(always)]
    pub(crate) fn of_task(id: u64) -> Object {
        Object(ptr::without_provenance_mut((id as usize) << TAG_BITS | TASK))
    }

    /// Returns the address of the object, or any other address: a hint for prefetching.
    #[inline(always)]
    pub(crate) fn address(self) -> *const u8 {
        self.0.cast_const().cast()
    }

    /// # Safety
    ///
    /// The stream is alive as long as the result is used.
    pub(crate) unsafe fn stream<'a>(self) -> Option<&'a Core> {
        // SAFETY: a word without a tag is null or from `of_stream`, and by the contract.
        if self.tag() == 0 { unsafe { self.0.cast::<Core>().as_ref() } } else { None }
    }

    /// # Safety
    ///
    /// The set is alive as long as the result is used.
    pub(crate) unsafe fn set<'a>(self) -> Option<&'a SetCore> {
        let set = self.0.map_addr(|address| address & !TAGS).cast::<SetCore>();
        // SAFETY: a word with this tag is from `of_set`, and by the contract.
        if self.tag() == SET { unsafe { set.as_ref() } } else { None }
    }

    pub(crate) fn task(self) -> Option<u64> {
        (self.tag() == TASK).then(|| (self.0.addr() >> TAG_BITS) as u64)
    }

    fn tag(self) -> usize {
        self.0.addr() & TAGS
    }
}

/// Place for an object, which the task writes, or the owner of its token.
pub(crate) struct ObjectWord(AtomicPtr<()>);

impl ObjectWord {
    pub(crate) fn new() -> ObjectWord {
        ObjectWord(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline(always)]
    pub(crate) fn store(&self, object: Object) {
        // Release: pairs with the acquire in `load`. After `NONE`, the memory may be freed.
        self.0.store(object.0, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> Object {
        // Acquire: pairs with the release in `store`, so a dump that follows the pointer finds the
        // object initialised.
        Object(self.0.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn word_contains_one_kind_of_object() {
        let core = ptr::without_provenance::<Core>(64);
        let set = ptr::without_provenance::<SetCore>(64);
        let word = ObjectWord::new();
        for object in [Object::NONE, Object::of_stream(core), Object::of_set(set)] {
            word.store(object);
            assert_eq!(word.load().task(), None);
        }
        for id in [0, 1, 64, 1 << 40] {
            word.store(Object::of_task(id));
            assert_eq!(word.load().task(), Some(id));
            // SAFETY: no object of these kinds is in the word.
            assert!(unsafe { word.load().stream().is_none() && word.load().set().is_none() });
        }
    }
}
