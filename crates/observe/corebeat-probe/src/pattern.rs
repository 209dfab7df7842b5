//! Patterns of probe names.

use crate::error::Error;
use wildmatch::WildMatch;

/// Limit on the bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 512;

/// A pattern of probe names: `*` matches any text, `?` any character, every other character itself.
///
/// ```
/// let pattern = corebeat_probe::Pattern::new("bank::*::pay")?;
/// assert!(pattern.matches("bank::Account::pay"));
/// assert!(!pattern.matches("bank::pay"));
/// # Ok::<(), corebeat_probe::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern(WildMatch);

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    ///
    /// The pattern is empty, longer than [`PATTERN_BYTES_MAX`], or contains a line break.
    pub fn new(pattern: &str) -> Result<Pattern, Error> {
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX || pattern.contains('\n') {
            return Err(Error::Pattern);
        }
        Ok(Pattern(WildMatch::new(pattern)))
    }

    /// Whether a name matches. The running time is at most proportional to the product of both
    /// lengths.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_wildcards_and_literals() {
        let fits = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().matches(name);
        assert!(fits("*", "") && fits("*", "a::b") && fits("a::*", "a::b") && fits("*b*", "abc"));
        assert!(fits("a?c", "aäc") && fits("a*b*c", "axxbyybzzc") && fits("**", "x"));
        assert!(!fits("a", "") && !fits("a?", "a") && !fits("a*b", "abc") && !fits("?", ""));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["", "a\nb", &"a".repeat(PATTERN_BYTES_MAX + 1)] {
            assert!(Pattern::new(pattern).is_err());
        }
    }
}
