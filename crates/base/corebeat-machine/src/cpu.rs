//! CPU and node numbers, and sets of CPUs in the list format of the kernel.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One more than the highest CPU number in a [`CpuSet`]. Linux supports up to 8,192 CPUs
/// (`CONFIG_NR_CPUS`).
pub const CPU_MAX: u32 = 8192;

/// Number of a logical CPU, as assigned by the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CpuId(pub u32);

/// Number of a NUMA node, as assigned by the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A set of CPUs. Its text form is the list format of the kernel, `0-3,8`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// Bit `c % 64` of word `c / 64` is CPU `c`. The last word is never 0, so that equal sets have
    /// equal words.
    words: Vec<u64>,
}

/// Error of parsing a [`CpuSet`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a list of CPUs: use numbers below {CPU_MAX} and ranges, such as 0-3,8")]
pub struct CpuSetError {
    /// Text that is not a list of CPUs.
    pub text: String,
}

impl CpuSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a CPU.
    ///
    /// # Panics
    /// Panics if the number is [`CPU_MAX`] or more.
    pub fn insert(&mut self, cpu: CpuId) {
        assert!(cpu.0 < CPU_MAX, "CPU {} is not below {CPU_MAX}", cpu.0);
        let word = cpu.0 as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    /// Returns whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.0 as usize / 64).is_some_and(|w| w & (1 << (cpu.0 % 64)) != 0)
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            (0..64).filter(move |b| word & (1 << b) != 0).map(move |b| CpuId(i as u32 * 64 + b))
        })
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|c| set.insert(c));
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Parses the list format of the kernel. Blank text is the empty set, as in `/sys`.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let wrong = || CpuSetError { text: text.trim().to_owned() };
        let number =
            |s: &str| s.trim().parse::<u32>().ok().filter(|&n| n < CPU_MAX).ok_or_else(wrong);
        let mut set = CpuSet::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((a, b)) => (number(a)?, number(b)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(wrong());
            }
            (first..=last).for_each(|c| set.insert(CpuId(c)));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|c| c.0).peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn cpuset_text_round_trips(cpus in proptest::collection::btree_set(0u32..CPU_MAX, 0..200)) {
            let set: CpuSet = cpus.iter().map(|&c| CpuId(c)).collect();
            prop_assert_eq!(set.len(), cpus.len());
            prop_assert_eq!(set.iter().map(|c| c.0).collect::<BTreeSet<_>>(), cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn cpuset_parse_never_panics(text in "[0-9,\\- x]{0,24}") {
            let _ = text.parse::<CpuSet>();
        }
    }

    #[test]
    fn cpuset_text_has_the_format_of_the_kernel() {
        assert_eq!("0-3,8\n".parse::<CpuSet>().unwrap().to_string(), "0-3,8");
        assert_eq!("\n".parse::<CpuSet>().unwrap(), CpuSet::new());
        assert_eq!("3,1,2".parse::<CpuSet>().unwrap().to_string(), "1-3");
    }

    #[test]
    fn cpuset_bad_text_is_named_in_the_error() {
        for bad in ["a", "1-", "3-1", "-1", "1,,2", "99999"] {
            assert!(bad.parse::<CpuSet>().unwrap_err().to_string().contains(bad), "{bad}");
        }
    }
}
