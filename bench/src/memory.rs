//! The memory of this process.

use std::fs;

/// Bytes of the pages that this process has touched, and of the page tables.
pub(crate) fn resident_bytes() -> Result<u64, String> {
    Ok(status("VmRSS:")? + status("VmPTE:")?)
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
    let text =
        fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("/proc/self/status has no {name}"))? * 1024)
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
