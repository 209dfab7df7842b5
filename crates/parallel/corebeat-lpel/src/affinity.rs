//! CPU affinity of worker threads.

use std::io;

/// Returns the CPUs that this process may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: the call fills a bit set of the given size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let size = std::mem::size_of_val(&set);
            (libc::sched_getaffinity(0, size, &mut set) == 0).then_some(set)
        };
        if let Some(set) = set {
            let last = libc::CPU_SETSIZE as usize;
            // SAFETY: the index is within the set.
            let cpus: Vec<_> =
                (0..last).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect();
            if !cpus.is_empty() {
                return cpus;
            }
        }
    }
    (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
}

/// Restricts the calling thread to these CPUs.
pub(crate) fn restrict(cpus: &[usize]) -> io::Result<()> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        if cpus.iter().any(|&cpu| cpu >= libc::CPU_SETSIZE as usize) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: the set has bits for these numbers, and the call only reads the set.
        let restricted = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
        };
        if restricted != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = cpus;
    Ok(())
}
