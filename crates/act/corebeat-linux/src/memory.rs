//! Placement of memory: the policy of a new program, and moving pages between NUMA nodes.

use crate::Error;
use crate::file::read_text;
use corebeat_machine::{CpuSet, NodeId};
use std::fs;
use std::io;

/// One more than the highest node number of Linux (`MAX_NUMNODES`).
const NODES_MAX: u32 = 1024;
const WORDS: usize = NODES_MAX as usize / 64;
/// Number of pages of a process that are spread: 64 GiB of small pages.
const PAGES_MAX: usize = 1 << 24;
/// Number of pages in one system call.
const PAGES_AT_ONCE: usize = 4096;
/// Flag: move only pages that no other process maps (`linux/mempolicy.h`).
const MPOL_MF_MOVE: i32 = 1 << 1;
/// Unit of spreading, in bytes: a huge page of x86 and most other processors.
const BLOCK: usize = 2 << 20;

/// NUMA nodes on which the memory of a program is placed, from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// On these nodes, page by page in rotation.
    Interleave(Vec<NodeId>),
    /// On these nodes only: allocation fails when they are full.
    Bind(Vec<NodeId>),
    /// On this node while it has free memory.
    Prefer(NodeId),
    /// On the node of the CPU that first accesses the memory.
    Local,
}

impl MemoryPolicy {
    /// Returns the arguments of the system call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a missing node or an empty list.
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

/// Arguments of the system call for a memory policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreparedPolicy {
    mode: i32,
    nodes: [u64; WORDS],
}

impl PreparedPolicy {
    /// Sets the policy for the calling thread and its children. One system call without
    /// allocation: safe between fork and exec.
    pub(crate) fn set(&self) -> io::Result<()> {
        let nodes =
            if self.mode == libc::MPOL_LOCAL { std::ptr::null() } else { self.nodes.as_ptr() };
        let bits = if nodes.is_null() { 0 } else { NODES_MAX + 1 };
        // SAFETY: the kernel reads `bits - 1` bits (one less than the argument), all of them in
        // `nodes`.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, u64::from(bits)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Moves pages of a process from the nodes `from` to the nodes `to`. A process that has ended is no
/// error. Pages that cannot be moved stay where they are.
pub(crate) fn migrate(pid: i32, from: &[NodeId], to: &[NodeId]) -> Result<(), Error> {
    let (from, to) = (mask(from)?, mask(to)?);
    // SAFETY: the kernel reads `NODES_MAX` bits (one less than the argument) from both masks.
    let result = unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            pid,
            u64::from(NODES_MAX + 1),
            from.as_ptr(),
            to.as_ptr(),
        )
    };
    if result >= 0 { Ok(()) } else { explain(pid) }
}

/// Returns the error of the last system call. A process that has ended is no error.
fn explain(pid: i32) -> Result<(), Error> {
    let source = io::Error::last_os_error();
    let what = format!("move the memory of process {pid}");
    match source.raw_os_error() {
        Some(libc::ESRCH) => Ok(()),
        Some(libc::ENOSYS) => {
            Err(Error::Unsupported { what, how: "it requires a kernel with CONFIG_NUMA".into() })
        }
        _ => Err(Error::of_call(what, source)),
    }
}

/// Distributes the private memory of a process evenly over all nodes with memory, in units of
/// [`BLOCK`]. Returns whether the host has several such nodes.
pub(crate) fn spread(pid: i32) -> Result<bool, Error> {
    let nodes: Vec<i32> = node_list("has_memory").iter().map(|node| node.0 as i32).collect();
    if nodes.len() < 2 {
        return Ok(false);
    }
    spread_over(pid, &nodes).map(|()| true)
}

/// Distributes memory over these nodes. Skips pages that cannot be moved or do not exist. All parts
/// of a huge page go to one node; otherwise the kernel would move the page once for each part.
fn spread_over(pid: i32, nodes: &[i32]) -> Result<(), Error> {
    let maps = match read_text(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Error::of_call(format!("read the memory map of process {pid}"), e));
        }
        Err(_) => return Ok(()),
    };
    let page = rustix::param::page_size();
    let all =
        maps.lines().filter_map(own_memory).flat_map(|range| range.step_by(page)).take(PAGES_MAX);
    let (mut pages, mut wanted) = (Vec::new(), Vec::new());
    let mut all = all.peekable();
    while let Some(address) = all.next() {
        pages.push(address as *const libc::c_void);
        wanted.push(nodes[address / BLOCK % nodes.len()]);
        if pages.len() < PAGES_AT_ONCE && all.peek().is_some() {
            continue;
        }
        let mut status = vec![0i32; pages.len()];
        // SAFETY: the kernel reads `pages.len()` addresses and nodes, and writes as many results.
        // The addresses belong to the other process, whose memory is neither read nor written.
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
        let none_present =
            result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
        if result < 0 && !none_present {
            return explain(pid);
        }
        pages.clear();
        wanted.clear();
    }
    Ok(())
}

/// Parses a line of `/proc/PID/maps`. Returns the addresses of private writable memory.
fn own_memory(line: &str) -> Option<std::ops::Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    rest.starts_with("rw-p ").then_some(address(from)?..address(to)?)
}

/// Reads a list of nodes, which has the format of a list of CPUs.
fn node_list(list: &str) -> CpuSet {
    let text = fs::read_to_string(format!("/sys/devices/system/node/{list}"))
        .unwrap_or_else(|_| "0".into());
    text.parse().unwrap_or_else(|_| CpuSet::new())
}

/// Returns a bit mask of these nodes.
fn mask(nodes: &[NodeId]) -> Result<[u64; WORDS], Error> {
    let online = node_list("online");
    let mut mask = [0u64; WORDS];
    for node in nodes {
        if node.0 >= NODES_MAX || !online.contains(corebeat_machine::CpuId(node.0)) {
            return Err(Error::InvalidArgument(format!(
                "node {} does not exist: use a node of this host ({online})",
                node.0
            )));
        }
        mask[node.0 as usize / 64] |= 1 << (node.0 % 64);
    }
    match nodes.is_empty() {
        true => Err(Error::InvalidArgument(format!(
            "no node is given: use a node of this host ({online})"
        ))),
        false => Ok(mask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL_NODES: &[NodeId] = &[NodeId(0)];

    #[test]
    fn missing_nodes_are_named_in_the_error() {
        let text = |e: Error| e.to_string();
        assert!(text(migrate(1, &[NodeId(999)], LOCAL_NODES).unwrap_err()).contains("999"));
        assert!(text(migrate(1, LOCAL_NODES, &[NodeId(5000)]).unwrap_err()).contains("5000"));
        assert!(text(MemoryPolicy::Bind(vec![]).prepare().unwrap_err()).contains("no node"));
    }

    #[test]
    fn migrate_of_a_process_that_has_ended_is_no_error() {
        match migrate(i32::MAX, LOCAL_NODES, LOCAL_NODES) {
            Ok(()) | Err(Error::Unsupported { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn spread_handles_running_and_ended_processes() {
        // With one node no page moves, but the system calls are the same.
        for pid in [std::process::id() as i32, i32::MAX] {
            match spread_over(pid, &[0]) {
                Ok(()) | Err(Error::Unsupported { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn own_memory_is_private_and_writable() {
        let line =
            |rights: &str| own_memory(&format!("7f00-8f00 {rights} 00000000 00:00 0   [heap]"));
        assert_eq!(line("rw-p"), Some(0x7f00..0x8f00));
        assert_eq!((line("r--p"), line("rw-s"), own_memory("x y")), (None, None, None));
    }

    #[test]
    fn kernel_accepts_all_policies() {
        let policies = [
            MemoryPolicy::Interleave(LOCAL_NODES.into()),
            MemoryPolicy::Bind(LOCAL_NODES.into()),
            MemoryPolicy::Prefer(LOCAL_NODES[0]),
            MemoryPolicy::Local,
        ];
        for policy in policies {
            let prepared = policy.prepare().unwrap();
            let result = std::thread::spawn(move || prepared.set()).join().unwrap();
            let unknown = result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS));
            assert!(result.is_ok() || unknown, "{policy:?}: {result:?}");
        }
    }
}
