//! The memory of this process and of its children.

use std::fs;

/// Bytes of the pages that this process has touched, and of the page tables.
pub(crate) fn resident_bytes() -> Result<u64, String> {
    Ok(status("VmRSS:")? + status("VmPTE:")?)
}

/// Bytes of the pages that a process has touched, and of its page tables.
pub(crate) fn resident_bytes_of(pid: u32) -> Result<u64, String> {
    let process = pid.to_string();
    Ok(status_of(&process, "VmRSS:")? + status_of(&process, "VmPTE:")?)
}

/// The largest growth of the resident memory of this process while `work` runs, in bytes.
pub(crate) fn peak<T>(work: impl FnOnce() -> Result<T, String>) -> Result<(u64, T), String> {
    // This write resets the peak: proc(5), clear_refs.
    fs::write("/proc/self/clear_refs", "5")
        .map_err(|e| format!("cannot reset the peak in /proc/self/clear_refs: {e}"))?;
    let before = status("VmRSS:")?;
    let done = work()?;
    Ok((status("VmHWM:")?.saturating_sub(before), done))
}

/// Reads an entry of `/proc/self/status`, in bytes.
fn status(name: &str) -> Result<u64, String> {
    status_of("self", name)
}

/// Reads an entry of the status of a process, in bytes.
fn status_of(process: &str, name: &str) -> Result<u64, String> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("{path} has no {name}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_touched_count_as_held_and_in_the_peak() {
        // This size exceeds by far what other tests of this process may free meanwhile.
        const BYTES: u64 = 256 << 20;
        let before = resident_bytes().unwrap();
        let touched = || {
            let pages = vec![1u8; BYTES as usize];
            let after = resident_bytes()?;
            Ok((std::hint::black_box(&pages).len(), after))
        };
        let (bytes, (len, after)) = peak(touched).unwrap();
        assert!(len as u64 == BYTES && bytes > BYTES / 2, "{bytes}");
        assert!(before > 0 && after > before + BYTES / 2, "{before} {after}");
    }
}
