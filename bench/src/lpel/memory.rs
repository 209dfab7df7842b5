//! What this process holds of the machine's memory.

use super::lap::Outcome;
use super::load::Load;

/// Bytes of pages that this process has touched, and of the tables that map them.
pub(crate) fn held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    (kib("VmRSS:") + kib("VmPTE:")) * 1024
}

/// What each task of a load has taken since `before`.
pub(crate) fn outcome(load: &Load, before: u64, after: u64, checksum: u64) -> Outcome {
    Outcome { value: after.saturating_sub(before) as f64 / load.count as f64, checksum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_grows_with_pages_that_are_touched() {
        let before = held();
        let pages = vec![1u8; 64 << 20];
        let after = held();
        assert!(std::hint::black_box(&pages).iter().all(|&b| b == 1));
        assert!(before > 0 && after > before + (32 << 20), "{before} {after}");
    }
}
