//! Patterns of names.

use crate::error::Error;

/// Bytes of a pattern, at most.
pub const PATTERN_BYTES_MAX: usize = 512;

/// A pattern of probes' names: `*` is any text, `?` any character, all else itself.
///
/// ```
/// let pattern = corebeat_probe::Pattern::new("bank::*::pay")?;
/// assert!(pattern.fits("bank::Account::pay"));
/// assert!(!pattern.fits("bank::pay"));
/// # Ok::<(), corebeat_probe::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// It is empty, longer than [`PATTERN_BYTES_MAX`], or has a line's end in it.
    pub fn new(pattern: &str) -> Result<Pattern, Error> {
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX || pattern.contains('\n') {
            return Err(Error::Pattern);
        }
        Ok(Pattern(pattern.into()))
    }

    /// Whether a name fits. It takes time as the product of both lengths at most.
    pub fn fits(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.as_str(), name);
        // Behind the last `*`: the pattern, and where in the name it is tried next.
        let mut again: Option<(&str, &str)> = None;
        loop {
            let (p, n) = (pattern.chars().next(), name.chars().next());
            match (p, n) {
                (Some('*'), _) => {
                    pattern = &pattern[1..];
                    again = Some((pattern, name));
                }
                (Some(p), Some(n)) if p == '?' || p == n => {
                    (pattern, name) = (&pattern[p.len_utf8()..], &name[n.len_utf8()..]);
                }
                (None, None) => return true,
                _ => {
                    let Some((after, from)) = again else { return false };
                    let Some(skipped) = from.chars().next() else { return false };
                    (pattern, name) = (after, &from[skipped.len_utf8()..]);
                    again = Some((pattern, name));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_fit_what_they_say() {
        let fits = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().fits(name);
        assert!(fits("*", "") && fits("*", "a::b") && fits("a::*", "a::b") && fits("*b*", "abc"));
        assert!(fits("a?c", "aäc") && fits("a*b*c", "axxbyybzzc") && fits("**", "x"));
        assert!(!fits("a", "") && !fits("a?", "a") && !fits("a*b", "abc") && !fits("?", ""));
    }

    #[test]
    fn patterns_of_no_use_are_refused() {
        for pattern in ["", "a\nb", &"a".repeat(PATTERN_BYTES_MAX + 1)] {
            assert!(Pattern::new(pattern).is_err());
        }
    }

    /// The meaning, without care for time.
    fn plain(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], _) => name.is_empty(),
            (['*', rest @ ..], _) => (0..=name.len()).any(|at| plain(rest, &name[at..])),
            (['?', rest @ ..], [_, others @ ..]) => plain(rest, others),
            ([p, rest @ ..], [n, others @ ..]) => p == n && plain(rest, others),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_fit_as_their_meaning_says(pattern in "[ab*?]{1,8}", name in "[abä]{0,8}") {
            let chars = |s: &str| s.chars().collect::<Vec<_>>();
            prop_assert_eq!(Pattern::new(&pattern).unwrap().fits(&name), plain(&chars(&pattern), &chars(&name)));
        }
    }
}
