//! Bound on the number of retired values. The only test of its process: sections of other tests
//! would keep values.

use corebeat_clustered::{Link, read_section};
use std::sync::Arc;

/// Values that are replaced in sections are freed at the ends of the sections, at the same rate.
#[test]
fn sections_that_replace_many_values_keep_few() {
    const IN_SECTION: usize = 100;
    let (value, link) = (Arc::new(()), Link::empty());
    for _ in 0..1_000 {
        read_section(|_| (0..IN_SECTION).for_each(|_| link.replace(value.clone())));
    }
    // A few times the number that a thread keeps.
    let kept = Arc::strong_count(&value);
    assert!(kept < 20 * IN_SECTION, "{kept}");
}
