//! The load of the whole host, including programs that are not watched.

use crate::file::{Buffer, ProcFile};

/// CPU time of the whole host since boot, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HostTicks {
    /// Time of all processes: user, nice, system, interrupts. Stolen time is not included.
    pub(crate) busy: u64,
}

/// Parses the first line of `/proc/stat`.
pub(crate) fn parse_stat(text: &str) -> Option<HostTicks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let mut field = line.split_ascii_whitespace().map(|f| f.parse::<u64>());
    let mut next = || field.next()?.ok();
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _iowait) = (next()?, next()?);
    let (irq, softirq) = (next()?, next()?);
    let busy = [user, nice, system, irq, softirq].into_iter().try_fold(0u64, u64::checked_add)?;
    Some(HostTicks { busy })
}

/// Fields of `/proc/loadavg` after the averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of threads that run or are ready to run now, including the reader.
    pub(crate) runnable: u64,
    /// Newest process or thread number: as long as it is equal, no thread has started.
    pub(crate) newest: u64,
}

/// Parses the text of `/proc/loadavg`, such as `0.20 0.09 0.03 1/91 7691`.
pub(crate) fn parse_loadavg(text: &str) -> Option<Load> {
    let mut fields = text.split_ascii_whitespace().skip(3);
    let runnable = fields.next()?.split_once('/')?.0.parse().ok()?;
    let newest = fields.next()?.parse().ok()?;
    Some(Load { runnable, newest })
}

/// Files of the host, and the sum of samples since the last snapshot.
#[derive(Debug)]
pub(crate) struct Host {
    stat: ProcFile,
    loadavg: ProcFile,
    runnable_sum: u64,
    samples: u64,
}

impl Host {
    pub(crate) fn new() -> Self {
        let open = |name: &str| ProcFile::open(format!("/proc/{name}"), true);
        Host { stat: open("stat"), loadavg: open("loadavg"), runnable_sum: 0, samples: 0 }
    }

    /// Returns the CPU time of all processes since boot.
    pub(crate) fn ticks(&self, buffer: &mut Buffer) -> Option<HostTicks> {
        parse_stat(&self.stat.read(buffer).ok()?)
    }

    /// Samples the number of runnable threads, and returns the newest process number.
    pub(crate) fn sample(&mut self, buffer: &mut Buffer) -> Option<u64> {
        let load = parse_loadavg(&self.loadavg.read(buffer).ok()?)?;
        self.runnable_sum = self.runnable_sum.saturating_add(load.runnable);
        self.samples += 1;
        Some(load.newest)
    }

    /// Returns the mean number of runnable threads over the samples since the last call, without
    /// this thread, which runs during every sample.
    pub(crate) fn take_runnable(&mut self) -> Option<f64> {
        let mean = (self.samples > 0).then(|| self.runnable_sum as f64 / self.samples as f64);
        (self.runnable_sum, self.samples) = (0, 0);
        mean.map(|m| (m - 1.0).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stat_busy_is_all_but_idle_iowait_and_steal() {
        let text = "cpu  10 1 20 1000 500 3 4 77 5 6\ncpu0 1 1 1 1\n";
        assert_eq!(parse_stat(text), Some(HostTicks { busy: 38 }));
        assert_eq!(parse_stat("cpu0 1 2 3"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn loadavg_gives_runnable_and_newest() {
        assert_eq!(
            parse_loadavg("0.20 0.09 0.03 3/91 7691\n"),
            Some(Load { runnable: 3, newest: 7691 })
        );
        assert_eq!(parse_loadavg("0.20 0.09 0.03 391"), None);
    }

    #[test]
    fn host_files_of_this_kernel_are_parsed() {
        let (mut buffer, mut host) = (Buffer::new(), Host::new());
        assert!(host.ticks(&mut buffer).is_some());
        assert!(host.sample(&mut buffer).is_some());
        assert!(host.take_runnable().is_some());
        assert_eq!(host.take_runnable(), None);
    }

    proptest! {
        #[test]
        fn host_parsers_never_panic(text in "(cpu )?[0-9 ./-]{0,80}\\PC{0,20}") {
            let _ = parse_stat(&text);
            let _ = parse_loadavg(&text);
        }
    }
}
