//! Whether this host can load the scheduler and the table.

use crate::Error;
use std::fs;
use std::path::Path;

/// Bits of capabilities in a set of them.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
/// Name of the first PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";
/// Name of the first time namespace (`PROC_TIME_INIT_INO`).
const FIRST_CLOCKS: &str = "time:[4026531834]";
/// Folder of sched_ext.
const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// Checks whether the scheduler can be loaded, and changes nothing.
///
/// # Errors
/// The first reason why it cannot be loaded.
pub fn check() -> Result<(), Error> {
    if !cfg!(feature = "bpf") {
        return Err(Error::NotBuilt);
    }
    let state = fs::read_to_string(Path::new(SCHED_EXT).join("state"));
    let Ok(state) = state else { return Err(Error::NoSchedExt) };
    check_kernel()?;
    if !has_capability(&own_status(), CAP_SYS_ADMIN) {
        return Err(Error::Denied);
    }
    match state.trim() {
        "disabled" => Ok(()),
        _ => Err(Error::Busy(loaded().unwrap_or_else(|| "of another program".into()))),
    }
}

/// Checks whether threads can be counted in the kernel, as far as that shows without loading the
/// programs.
///
/// # Errors
/// The first reason why they cannot.
pub fn check_table() -> Result<(), Error> {
    if !cfg!(feature = "bpf") {
        return Err(Error::NotBuilt);
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Processor);
    }
    check_kernel()?;
    // Kernels without CONFIG_TIME_NS have no such file.
    if fs::read_link("/proc/self/ns/time").is_ok_and(|name| name != Path::new(FIRST_CLOCKS)) {
        return Err(Error::Clock);
    }
    match may_trace(&own_status()) {
        true => Ok(()),
        false => Err(Error::TracingDenied),
    }
}

/// Checks that the kernel describes its types, and uses the numbers of this process for threads.
fn check_kernel() -> Result<(), Error> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::NoTypes);
    }
    match fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name == Path::new(FIRST_NAMESPACE)) {
        true => Ok(()),
        false => Err(Error::Namespace),
    }
}

/// Returns whether a process with this file `status` may trace the kernel.
fn may_trace(status: &str) -> bool {
    has_capability(status, CAP_SYS_ADMIN)
        || (has_capability(status, CAP_BPF) && has_capability(status, CAP_PERFMON))
}

fn own_status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Returns the name of the scheduler that is loaded, if the kernel reports one.
pub fn loaded() -> Option<String> {
    let name = fs::read_to_string(Path::new(SCHED_EXT).join("root/ops")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns whether the effective capabilities in a file `status` of `/proc` include a number.
fn has_capability(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << bit) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200000\n";
        assert!(has_capability(status, CAP_SYS_ADMIN));
        assert!(!has_capability(status, 20));
        for bad in ["", "CapEff:", "CapEff:\tx", "CapPrm:\tffffffffffffffff"] {
            assert!(!has_capability(bad, CAP_SYS_ADMIN), "{bad}");
        }
    }

    #[test]
    fn tracing_requires_two_capabilities_or_that_of_the_administrator() {
        for (set, may) in
            [("200000", true), ("c000000000", true), ("8000000000", false), ("4000000000", false)]
        {
            assert_eq!(may_trace(&format!("CapEff:\t{set}\n")), may, "{set}");
        }
    }

    #[test]
    fn check_without_the_feature_explains_the_build() {
        if cfg!(not(feature = "bpf")) {
            assert!(check().unwrap_err().to_string().contains("--features kernel"));
        }
    }
}
