//! The subjects of Corebeat: objects on processors. Both kinds of collection take turns on the same
//! objects in one process.

use super::Options;
use super::plan::{Plan, Work};
use super::subject::Subject;
use corebeat_scoop::{Client, Collected, Error, Gc, Here, Link, Separate, System, Trace};
use std::sync::Arc;
use std::time::Instant;

/// The medians of the collections of a run, in milliseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) joint: f64,
    pub(super) joint_marking: f64,
    /// 0 if the run has no such collections.
    pub(super) objects_only: f64,
    pub(super) objects_only_marking: f64,
}

/// An object with `N` links, and a link to its processor if processors are objects. Otherwise this
/// link exists and is empty, as in the paper.
#[derive(Trace)]
pub(super) struct Node<const N: usize> {
    links: [Option<Link<Node<N>>>; N],
    processor: Option<Link<Root>>,
}

/// The object that represents a processor if processors are objects.
#[derive(Trace)]
struct Root;

/// The roots of a processor: its objects, or the first object of a tree. For a ring, the first
/// processor has only the first object as a root, and the other processors have no roots.
#[derive(Trace)]
pub(super) struct Home<const N: usize> {
    nodes: Vec<Gc<Node<N>>>,
    root: Gc<Root>,
}

/// A processor with this many objects, to which only its own root refers.
pub(super) fn home<const N: usize>(
    client: &Client,
    objects: usize,
    as_object: bool,
) -> Separate<Home<N>> {
    client.create(move |here| {
        let root = here.make(Root);
        let node = || Node { links: [None; N], processor: as_object.then_some(root.into()) };
        let nodes = (0..objects).map(|_| here.make(node())).collect();
        Home { nodes, root }
    })
}

/// A system that collects only on request.
pub(super) fn system(workers: usize) -> Result<System, String> {
    let runtime =
        corebeat_lpel::Runtime::builder().workers(workers).build().map_err(|e| e.to_string())?;
    let options = corebeat_scoop::Options { processors_between: u64::MAX, bytes_between: u64::MAX };
    Ok(System::with_options(runtime, options))
}

/// Builds the objects, collects, and counts the live objects.
pub(super) fn measure<const N: usize>(options: &Options) -> Result<(Times, u64), String> {
    let system = system(1)?;
    let client = system.client();
    let plan = options.plan();
    let as_object = options.subject == Subject::ProcessorAsObject;
    let share = plan.share();
    let mut homes: Vec<_> =
        share.iter().map(|own| home::<N>(&client, own.len(), as_object)).collect();
    let built = match plan.work {
        Work::Ring | Work::Shuffled | Work::Links => link(&client, &homes, &share, &plan),
        work => homes.iter().try_for_each(|home| {
            home.query(&client, move |here, home| {
                grow(here, home);
                if work == Work::Dead {
                    here.keep(home);
                }
            })
        }),
    };
    built.map_err(|e| e.to_string())?;
    if !matches!(plan.work, Work::Trees | Work::Links) {
        homes.truncate(1);
    }
    // Homes, and roots with a reference, are objects as well.
    let extra = match plan.work {
        Work::Ring | Work::Shuffled if as_object => 1 + plan.processors,
        _ => 2 * homes.len(),
    };
    let live = if plan.work == Work::Dead { share[0].len() } else { plan.objects };
    let all =
        if plan.work == Work::Dead { plan.objects + 2 * plan.processors } else { live + extra };
    let check = |found: Collected, expected: usize| {
        let wrong =
            || format!("the collection left {} objects instead of {expected}", found.objects);
        (found.objects == expected as u64).then_some(found).ok_or_else(wrong)
    };
    let (mut joint, mut only) = (Vec::new(), Vec::new());
    let objects_only = |only: &mut Vec<_>| -> Result<(), String> {
        if options.subject == Subject::Corebeat {
            only.push(timed(|| check(system.collect_objects(), all))?);
        }
        Ok(())
    };
    // The order also alternates.
    for n in 0..options.collections {
        if plan.work == Work::Dead || n % 2 == 1 {
            objects_only(&mut only)?;
        }
        // Only one collection can find the dead processors, and this collection is the last.
        if plan.work != Work::Dead || n + 1 == options.collections {
            joint.push(timed(|| check(system.collect(), live + extra))?);
        }
        if plan.work != Work::Dead && n % 2 == 0 {
            objects_only(&mut only)?;
        }
    }
    let times = Times {
        joint: median(joint.iter().map(|times| times.0)),
        joint_marking: median(joint.iter().map(|times| times.1)),
        objects_only: median(only.iter().map(|times| times.0)),
        objects_only_marking: median(only.iter().map(|times| times.1)),
    };
    Ok((times, live as u64))
}

/// Milliseconds of the collection, and of its marking phase.
fn timed(collect: impl FnOnce() -> Result<Collected, String>) -> Result<(f64, f64), String> {
    let begin = Instant::now();
    let found = collect()?;
    Ok((begin.elapsed().as_secs_f64() * 1e3, found.marking.as_secs_f64() * 1e3))
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Builds a full binary tree of the objects. The home keeps the first object.
pub(super) fn grow<const N: usize>(here: &mut Here<'_>, home: Gc<Home<N>>) {
    let nodes = std::mem::take(&mut here[home].nodes);
    for (n, node) in nodes.iter().enumerate() {
        for side in 0..N {
            here[*node].links[side] = nodes.get(N * n + side + 1).map(|child| Link::from(*child));
        }
    }
    here[home].nodes = nodes[..1.min(nodes.len())].to_vec();
}

/// Links the objects of all processors as planned.
fn link<const N: usize>(
    client: &Client,
    homes: &[Separate<Home<N>>],
    share: &[Vec<usize>],
    plan: &Plan,
) -> Result<(), Error> {
    let mut all: Vec<Option<Separate<Node<N>>>> = vec![None; plan.objects];
    for (home, own) in homes.iter().zip(share) {
        let nodes = home.query(client, |here, home| {
            here[home].nodes.iter().map(|node| here.separate(*node)).collect::<Vec<_>>()
        })?;
        own.iter().zip(nodes).for_each(|(number, node)| all[*number] = Some(node));
    }
    let all = Arc::new(all);
    let ring = if plan.work == Work::Links { Vec::new() } else { plan.ring() };
    for (home, own) in homes.iter().zip(share) {
        let target =
            |object, side| if ring.is_empty() { plan.link(object, side) } else { ring[object] };
        let targets: Vec<[usize; N]> =
            own.iter().map(|object| std::array::from_fn(|side| target(*object, side))).collect();
        let all = all.clone();
        home.query(client, move |here, home| {
            for (n, targets) in targets.iter().enumerate() {
                let node = here[home].nodes[n];
                for (side, target) in targets.iter().enumerate() {
                    let target = all[*target].as_ref().expect("each object is on a processor");
                    here[node].links[side] = Some(here.link(target));
                }
            }
        })?;
    }
    if plan.work != Work::Links {
        homes[0].query(client, |here, home| here[home].nodes.truncate(1))?;
    }
    Ok(())
}
