//! Bounds on the number of retired values.

use corebeat_clustered::{Link, Map, read_section, reclaim};
use std::sync::{Arc, Mutex};

/// Locked by each test: sections of other tests would keep values.
static ALONE: Mutex<()> = Mutex::new(());

/// Values that are replaced in sections are freed at the ends of the sections, at the same rate.
#[test]
fn sections_that_replace_many_values_keep_few() {
    let _alone = ALONE.lock();
    const IN_SECTION: usize = 100;
    let (value, link) = (Arc::new(()), Link::empty());
    for _ in 0..1_000 {
        read_section(|_| (0..IN_SECTION).for_each(|_| link.replace(value.clone())));
    }
    // A few times the number that a thread keeps.
    let kept = Arc::strong_count(&value);
    assert!(kept < 20 * IN_SECTION, "{kept}");
}

/// A growing map leaves no table behind.
#[test]
fn old_tables_are_freed_when_the_map_has_grown() {
    let _alone = ALONE.lock();
    let map = Map::new();
    (0..10_000).for_each(|key| assert!(map.insert(key, ())));
    assert_eq!(reclaim(), 0);
    map.clear();
    assert_eq!(reclaim(), 0);
    drop(map);
    assert_eq!(reclaim(), 0);
}
