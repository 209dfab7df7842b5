//! Where memory lies: the policy that a program starts with, and moving pages between NUMA nodes.

use crate::Error;
use corebeat_machine::{CpuSet, NodeId};
use std::fs;
use std::io;

/// One more than the highest node number that Linux is built for (`MAX_NUMNODES`).
const NODES_MAX: u32 = 1024;
const WORDS: usize = NODES_MAX as usize / 64;
/// No more pages of a process are looked at to spread them: 64 GiB of small ones.
const PAGES_MAX: usize = 1 << 24;
/// So many are handed to the kernel at once.
const PAGES_AT_ONCE: usize = 4096;
/// Only pages that the process has for itself are moved (`linux/mempolicy.h`).
const MPOL_MF_MOVE: i32 = 1 << 1;
/// What lies together when memory is spread, in bytes: a huge page of x86 and of most others.
const BLOCK: usize = 2 << 20;

/// On which NUMA nodes a program's memory is placed, from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// On these nodes, page by page in turns.
    Interleave(Vec<NodeId>),
    /// On these nodes and no others: where they are full, memory is out.
    Bind(Vec<NodeId>),
    /// On this node while it has room.
    Prefer(NodeId),
    /// On the node of the CPU that first touches it.
    Local,
}

impl MemoryPolicy {
    /// What the system call takes.
    ///
    /// # Errors
    /// [`Error::Senseless`] for a node that is not there, or for none.
    pub(crate) fn prepare(&self) -> Result<PreparedPolicy, Error> {
        let (mode, nodes) = match self {
            MemoryPolicy::Interleave(nodes) => (libc::MPOL_INTERLEAVE, mask(nodes)?),
            MemoryPolicy::Bind(nodes) => (libc::MPOL_BIND, mask(nodes)?),
            MemoryPolicy::Prefer(node) => (libc::MPOL_PREFERRED, mask(&[*node])?),
            MemoryPolicy::Local => (libc::MPOL_LOCAL, [0; WORDS]),
        };
        Ok(PreparedPolicy { mode, nodes })
    }
}

/// A memory policy as numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreparedPolicy {
    mode: i32,
    nodes: [u64; WORDS],
}

impl PreparedPolicy {
    /// Sets it for the calling thread and all that it starts. One system call and no memory: fit for after a fork.
    pub(crate) fn set(&self) -> io::Result<()> {
        let nodes = if self.mode == libc::MPOL_LOCAL { std::ptr::null() } else { self.nodes.as_ptr() };
        let bits = if nodes.is_null() { 0 } else { NODES_MAX + 1 };
        // SAFETY: the kernel reads `bits - 1` bits (it takes one less than it is told), all of them in `nodes`.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, u64::from(bits)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Moves the pages of a process that lie on `from` to `to`. A process that has ended is no error; pages that cannot be
/// moved stay where they are.
pub(crate) fn migrate(pid: i32, from: &[NodeId], to: &[NodeId]) -> Result<(), Error> {
    let (from, to) = (mask(from)?, mask(to)?);
    // SAFETY: the kernel reads `NODES_MAX` bits (one less than it is told) from both masks.
    let result = unsafe {
        libc::syscall(libc::SYS_migrate_pages, pid, u64::from(NODES_MAX + 1), from.as_ptr(), to.as_ptr())
    };
    if result >= 0 { Ok(()) } else { explain(pid) }
}

/// Why the last call could not move a process' memory. One that has ended is no error.
fn explain(pid: i32) -> Result<(), Error> {
    let source = io::Error::last_os_error();
    let what = format!("move the memory of process {pid}");
    match source.raw_os_error() {
        Some(libc::ESRCH) => Ok(()),
        Some(libc::ENOSYS) => Err(Error::Missing { what, how: "this kernel was built without NUMA".into() }),
        Some(libc::EPERM | libc::EACCES) => Err(Error::Denied { what, source }),
        _ => Err(Error::Refused { what, source }),
    }
}

/// Lays the private memory of a process evenly over all nodes that have some, [`BLOCK`] by block. Whether there was a choice.
pub(crate) fn spread(pid: i32) -> Result<bool, Error> {
    let nodes: Vec<i32> = there("has_memory").iter().map(|node| node.0 as i32).collect();
    if nodes.len() < 2 {
        return Ok(false);
    }
    spread_over(pid, &nodes).map(|()| true)
}

/// Pages that cannot be moved, or are not there, are left out. Moving huge pages by their parts would move each of them again and
/// again, were not all parts meant for one node.
fn spread_over(pid: i32, nodes: &[i32]) -> Result<(), Error> {
    let maps = match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Error::Denied { what: format!("see the memory of process {pid}"), source: e });
        }
        Err(_) => return Ok(()),
    };
    let page = rustix::param::page_size();
    let all = maps.lines().filter_map(own_memory).flat_map(|range| range.step_by(page)).take(PAGES_MAX);
    let (mut pages, mut wanted) = (Vec::new(), Vec::new());
    let mut all = all.peekable();
    while let Some(address) = all.next() {
        pages.push(address as *const libc::c_void);
        wanted.push(nodes[address / BLOCK % nodes.len()]);
        if pages.len() < PAGES_AT_ONCE && all.peek().is_some() {
            continue;
        }
        let mut status = vec![0i32; pages.len()];
        // SAFETY: the kernel reads `pages.len()` addresses and nodes, and writes as many results; the addresses are looked up in the
        // other process, and nothing is read or written there.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                pid,
                pages.len(),
                pages.as_ptr(),
                wanted.as_ptr(),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        let none_there = result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
        if result < 0 && !none_there {
            return explain(pid);
        }
        pages.clear();
        wanted.clear();
    }
    Ok(())
}

/// The addresses of a line of `/proc/PID/maps`, if what is there is the process' own and may be written.
fn own_memory(line: &str) -> Option<std::ops::Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    rest.starts_with("rw-p ").then_some(address(from)?..address(to)?)
}

/// The nodes of a list of the kernel's, which has the format of its lists of CPUs.
fn there(list: &str) -> CpuSet {
    let text = fs::read_to_string(format!("/sys/devices/system/node/{list}")).unwrap_or_else(|_| "0".into());
    text.parse().unwrap_or_else(|_| CpuSet::new())
}

/// These nodes as the kernel wants them.
fn mask(nodes: &[NodeId]) -> Result<[u64; WORDS], Error> {
    let there = there("online");
    let mut mask = [0u64; WORDS];
    for node in nodes {
        let is_there = node.0 < NODES_MAX && there.contains(corebeat_machine::CpuId(node.0));
        if !is_there {
            return Err(Error::Senseless(format!(
                "there is no node {}; write one of this host's: {there}",
                node.0
            )));
        }
        mask[node.0 as usize / 64] |= 1 << (node.0 % 64);
    }
    match nodes.is_empty() {
        true => Err(Error::Senseless(format!("no node is given; write one of this host's: {there}"))),
        false => Ok(mask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[NodeId] = &[NodeId(0)];

    #[test]
    fn nodes_that_are_not_there_are_named() {
        let told = |e: Error| e.to_string();
        assert!(told(migrate(1, &[NodeId(999)], HERE).unwrap_err()).contains("999"));
        assert!(told(migrate(1, HERE, &[NodeId(5000)]).unwrap_err()).contains("5000"));
        assert!(told(MemoryPolicy::Bind(vec![]).prepare().unwrap_err()).contains("no node"));
    }

    #[test]
    fn migrate_of_a_process_that_has_ended_is_no_error() {
        match migrate(i32::MAX, HERE, HERE) {
            Ok(()) | Err(Error::Missing { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn spread_moves_what_is_there_and_leaves_what_has_ended() {
        // On one node everything is there already; the calls are the same.
        for pid in [std::process::id() as i32, i32::MAX] {
            match spread_over(pid, &[0]) {
                Ok(()) | Err(Error::Missing { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn own_memory_is_private_and_writable() {
        let line = |rights: &str| own_memory(&format!("7f00-8f00 {rights} 00000000 00:00 0   [heap]"));
        assert_eq!(line("rw-p"), Some(0x7f00..0x8f00));
        assert_eq!((line("r--p"), line("rw-s"), own_memory("x y")), (None, None, None));
    }

    #[test]
    fn policies_are_taken_by_the_kernel() {
        let policies = [
            MemoryPolicy::Interleave(HERE.into()),
            MemoryPolicy::Bind(HERE.into()),
            MemoryPolicy::Prefer(HERE[0]),
            MemoryPolicy::Local,
        ];
        for policy in policies {
            let prepared = policy.prepare().unwrap();
            let taken = std::thread::spawn(move || prepared.set()).join().unwrap();
            let unknown = taken.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS));
            assert!(taken.is_ok() || unknown, "{policy:?}: {taken:?}");
        }
    }
}
