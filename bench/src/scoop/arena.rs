//! The subject gc-arena: one heap for one thread.

use super::Options;
use super::heap::median;
use super::plan::Work;
use gc_arena::lock::RefLock;
use gc_arena::{Arena, Collect, Gc, Rootable};
use std::time::Instant;

#[derive(Collect)]
#[collect(no_drop)]
struct Node<'gc, const N: usize> {
    links: [Option<Gc<'gc, RefLock<Node<'gc, N>>>>; N],
}

type Shared<'gc, const N: usize> = Gc<'gc, RefLock<Node<'gc, N>>>;

/// Milliseconds of a collection, and the number of live objects.
pub(super) fn measure<const N: usize>(options: &Options) -> (f64, u64) {
    let plan = options.plan();
    let share = plan.share();
    let ring =
        if matches!(plan.work, Work::Ring | Work::Shuffled) { plan.ring() } else { Vec::new() };
    let mut arena = Arena::<Rootable![Vec<Shared<'_, N>>]>::new(|mc| {
        let new = |_| Gc::new(mc, RefLock::new(Node { links: [None; N] }));
        let nodes: Vec<Shared<'_, N>> = (0..plan.objects).map(new).collect();
        let mut roots = Vec::new();
        for own in &share {
            for (n, object) in own.iter().enumerate() {
                let target = |side| match plan.work {
                    Work::Links => Some(plan.link(*object, side)),
                    Work::Ring | Work::Shuffled => Some(ring[*object]),
                    _ => own.get(N * n + side + 1).copied(),
                };
                let targets: [Option<usize>; N] = std::array::from_fn(target);
                nodes[*object].borrow_mut(mc).links =
                    targets.map(|target| target.map(|t| nodes[t]));
            }
            match plan.work {
                Work::Links => roots.extend(own.iter().map(|object| nodes[*object])),
                _ => roots.extend(own.first().map(|first| nodes[*first])),
            }
        }
        if matches!(plan.work, Work::Dead | Work::Ring | Work::Shuffled) {
            roots.truncate(1);
        }
        roots
    });
    let times = (0..if plan.work == Work::Dead { 1 } else { options.collections }).map(|_| {
        let begin = Instant::now();
        arena.finish_cycle();
        begin.elapsed().as_secs_f64() * 1e3
    });
    (median(times), plan.objects as u64)
}
