//! Arrangement of threads by lock time over places.

use corebeat_machine::{Cpu, CpuSet, ThreadId, Topology};

/// A thread with its place and its share of time on locks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    pub(super) id: ThreadId,
    pub(super) place: usize,
    pub(super) lock: f64,
}

/// Returns the sets of CPUs that share a last-level cache as a chain: the set of the first CPU, and
/// after each set the nearest of the remaining sets.
pub(crate) fn chain(topology: &Topology) -> Vec<CpuSet> {
    let index = |node| topology.nodes().iter().position(|n| n.id == node);
    let distance = |a: &Cpu, b: &Cpu| {
        let far = index(a.node).zip(index(b.node)).map(|(a, b)| topology.nodes()[a].distances[b]);
        (a.package != b.package, far)
    };
    let mut firsts: Vec<&Cpu> = Vec::new();
    for cpu in topology.cpus() {
        if !firsts.iter().any(|first| first.cache == cpu.cache) {
            firsts.push(cpu);
        }
    }
    let mut places = Vec::new();
    let mut at = 0;
    while at < firsts.len() {
        let last = firsts.remove(at);
        let sharing = topology.cpus().iter().filter(|cpu| cpu.cache == last.cache);
        places.push(sharing.map(|cpu| cpu.id).collect());
        at = (0..firsts.len()).min_by_key(|&i| distance(last, firsts[i])).unwrap_or(firsts.len());
    }
    places
}

/// Returns the number of threads for each place: proportional to its CPUs. Remaining threads go to
/// the places that have the most threads now.
pub(super) fn sizes(counts: &[usize], cpus: &[usize]) -> Vec<usize> {
    let (threads, all) = (counts.iter().sum::<usize>(), cpus.iter().sum::<usize>().max(1));
    let mut sizes: Vec<usize> = cpus.iter().map(|cpus| threads * cpus / all).collect();
    let rest = threads - sizes.iter().sum::<usize>();
    let mut places: Vec<usize> = (0..sizes.len()).collect();
    let claim = |place: usize| (counts[place] > sizes[place], threads * cpus[place] % all);
    places.sort_by_key(|&place| std::cmp::Reverse(claim(place)));
    places.into_iter().take(rest).for_each(|place| sizes[place] += 1);
    sizes
}

/// Moves threads from places with too many threads to places with too few, in the order of the
/// threads. The number of moves is minimal.
pub(super) fn balance(members: &mut [Member], sizes: &[usize]) {
    let mut counts = vec![0; sizes.len()];
    members.iter().for_each(|m| counts[m.place] += 1);
    for m in members {
        if counts[m.place] > sizes[m.place]
            && let Some(to) = (0..sizes.len()).find(|&place| counts[place] < sizes[place])
        {
            counts[m.place] -= 1;
            counts[to] += 1;
            m.place = to;
        }
    }
}

/// Swaps threads until the threads with the longest lock times are in the first place, the next
/// ones in the second place, and so on, as far as their lock times differ by more than the band. A
/// thread that a swap brings to its place stays there, so there are fewer swaps than threads.
pub(super) fn shuffle(members: &mut [Member], places: usize, band: f64) {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by(|&a, &b| {
        members[b].lock.total_cmp(&members[a].lock).then(members[a].id.cmp(&members[b].id))
    });
    let mut first = 0;
    for place in 0..places {
        let size = members.iter().filter(|m| m.place == place).count();
        let (group, later) = order[first..].split_at(size.min(order.len() - first));
        first += group.len();
        // Threads of this group in a later place, longest lock time first, and threads of later
        // groups in this place, shortest lock time first.
        let arriving = group.iter().copied().filter(|&i| members[i].place > place);
        let leaving = later.iter().rev().copied().filter(|&i| members[i].place == place);
        let pairs: Vec<(usize, usize)> = arriving.zip(leaving).collect();
        for (arriving, leaving) in pairs {
            if members[arriving].lock - members[leaving].lock <= band {
                break;
            }
            let from = members[arriving].place;
            members[arriving].place = place;
            members[leaving].place = from;
        }
    }
}
