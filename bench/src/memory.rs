//! The memory of this process.

use std::fs;

/// Bytes of pages that this process has touched, and of the tables that map them.
pub(crate) fn held() -> Result<u64, String> {
    Ok(status("VmRSS:")? + status("VmPTE:")?)
}

/// How much more this process holds at once, at most, while `work` runs than before, in bytes.
pub(crate) fn peak<T>(work: impl FnOnce() -> Result<T, String>) -> Result<(u64, T), String> {
    // The kernel resets the peak: proc(5), clear_refs.
    fs::write("/proc/self/clear_refs", "5")
        .map_err(|e| format!("the peak cannot be measured: {e}"))?;
    let before = status("VmRSS:")?;
    let done = work()?;
    Ok((status("VmHWM:")?.saturating_sub(before), done))
}

/// The bytes of an entry of the status of this process.
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
        // Far more than other tests of this process may give back meanwhile.
        const BYTES: u64 = 256 << 20;
        let before = held().unwrap();
        let touched = || {
            let pages = vec![1u8; BYTES as usize];
            let after = held()?;
            Ok((std::hint::black_box(&pages).len(), after))
        };
        let (bytes, (len, after)) = peak(touched).unwrap();
        assert!(len as u64 == BYTES && bytes > BYTES / 2, "{bytes}");
        assert!(before > 0 && after > before + BYTES / 2, "{before} {after}");
    }
}
