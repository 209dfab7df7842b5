//! Free carriers and stacks of one worker.

use super::Worker;
use crate::context::Carrier;
use crate::stack::Pool;
use crate::task::Header;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

#[derive(Default)]
pub(super) struct Carriers {
    /// Free carriers and stacks, for each size of stacks.
    sizes: RefCell<Vec<Size>>,
    /// The carrier that was released last, unless a task has borrowed it again. An async task
    /// borrows a carrier for each poll.
    cached: Cell<Option<(NonNull<Carrier>, u32)>>,
}

struct Size {
    pool: Pool,
    #[expect(clippy::vec_box, reason = "a task has a pointer to its carrier")]
    spare: Vec<Box<Carrier>>,
}

impl Carriers {
    fn put_back(&self, carrier: NonNull<Carrier>, stack_size: u32) {
        // SAFETY: the carrier is from `borrow_carrier`, and is not on loan.
        let carrier = unsafe { Box::from_raw(carrier.as_ptr()) };
        let mut sizes = self.sizes.borrow_mut();
        let size = sizes.iter_mut().find(|s| s.pool.stack_size() == stack_size as usize);
        size.expect("a carrier is from the pool of its size").spare.push(carrier);
    }
}

impl Worker {
    #[inline]
    pub(super) fn borrow_carrier(&self, stack_size: u32) -> std::io::Result<*mut Carrier> {
        let carriers = &self.own.carriers;
        if let Some((cached, size)) = carriers.cached.get()
            && size == stack_size
        {
            carriers.cached.set(None);
            return Ok(cached.as_ptr());
        }
        self.borrow_spare_carrier(stack_size as usize).map(Box::into_raw)
    }

    fn borrow_spare_carrier(&self, stack_size: usize) -> std::io::Result<Box<Carrier>> {
        let mut sizes = self.own.carriers.sizes.borrow_mut();
        let at = match sizes.iter().position(|s| s.pool.stack_size() == stack_size) {
            Some(at) => at,
            None => {
                sizes.push(Size { pool: Pool::new(stack_size), spare: Vec::new() });
                sizes.len() - 1
            }
        };
        let size = &mut sizes[at];
        if let Some(carrier) = size.spare.pop() {
            return Ok(carrier);
        }
        let carrier = Box::new(Carrier::new(size.pool.take()?)?);
        self.counts.stacks.add(1);
        Ok(carrier)
    }

    /// Takes the carrier of a task back.
    #[inline(never)]
    pub(super) fn release_carrier(&self, header: &Header) {
        let carrier = header.carrier.replace(std::ptr::null_mut());
        let released = NonNull::new(carrier).map(|carrier| (carrier, header.stack_size));
        let before = self.own.carriers.cached.replace(released);
        if let Some((carrier, stack_size)) = before {
            self.own.carriers.put_back(carrier, stack_size);
        }
    }

    /// Frees the memory of all free carriers but `keep` of each size.
    pub(crate) fn trim_carriers(&self, keep: usize) {
        let carriers = &self.own.carriers;
        if let Some((carrier, stack_size)) = carriers.cached.take() {
            carriers.put_back(carrier, stack_size);
        }
        for size in carriers.sizes.borrow_mut().iter_mut() {
            while size.spare.len() > keep
                && let Some(carrier) = size.spare.pop()
            {
                size.pool.give_back(carrier.end());
                self.counts.stacks.add(u64::MAX);
            }
        }
    }
}
