//! The most memory that this process takes while it does something.

use std::fs;

/// How much more this process holds at once, at most, while `work` runs than before, in bytes.
pub(crate) fn peak<T>(work: impl FnOnce() -> Result<T, String>) -> Result<(u64, T), String> {
    // The kernel begins anew to look for the highest; proc(5), clear_refs.
    fs::write("/proc/self/clear_refs", "5").map_err(|e| format!("the peak cannot be measured: {e}"))?;
    let before = status("VmRSS:")?;
    let done = work()?;
    Ok((status("VmHWM:")?.saturating_sub(before), done))
}

fn status(name: &str) -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("/proc/self/status has no {name}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_seen_of_pages_that_are_given_back() {
        // Far more than other tests of this process may give back meanwhile.
        const BYTES: u64 = 256 << 20;
        let touched = || {
            let pages = vec![1u8; BYTES as usize];
            Ok(std::hint::black_box(&pages).len())
        };
        let (bytes, len) = peak(touched).unwrap();
        assert!(len as u64 == BYTES && bytes > BYTES / 2, "{bytes}");
    }
}
