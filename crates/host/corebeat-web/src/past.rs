//! The recorded past of a host, for its page.

use crate::State;

/// A period before now that the page of a host offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// The last hour.
    Hour,
    /// The last day.
    Day,
}

impl Range {
    /// All ranges, the shortest first.
    pub const ALL: [Range; 2] = [Range::Hour, Range::Day];

    /// The range with this name in an address, such as `1h`.
    pub fn named(name: &str) -> Option<Range> {
        Range::ALL.into_iter().find(|range| range.name() == name)
    }

    /// Length of the period, in seconds.
    pub fn seconds(self) -> u64 {
        match self {
            Range::Hour => 3600,
            Range::Day => 86_400,
        }
    }

    /// Name in an address.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Range::Hour => "1h",
            Range::Day => "1d",
        }
    }

    /// Name on the page.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Range::Hour => "1 hour",
            Range::Day => "1 day",
        }
    }
}

/// A history of the host.
pub trait Past: std::fmt::Debug + Send + Sync {
    /// The content of a page about the period before now ([`State::range_page`]). May take seconds.
    /// Groups of heartbeats that only their owner may list are included only if `all` is set.
    ///
    /// # Errors
    /// The reason why the history cannot be read, in one line.
    fn content(&self, range: Range, all: bool) -> Result<State, String>;
}
