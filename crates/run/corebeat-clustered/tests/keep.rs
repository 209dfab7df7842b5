//! How much is kept that nobody can find any more. Alone in its process: events of other tests would hold values up.

use corebeat_clustered::{Link, event};
use std::sync::Arc;

/// Values that are replaced within events are freed at the ends of these, as many as came.
#[test]
fn events_that_replace_many_values_keep_few() {
    const IN_EVENT: usize = 100;
    let (value, link) = (Arc::new(()), Link::empty());
    for _ in 0..1_000 {
        event(|_| (0..IN_EVENT).for_each(|_| link.replace(value.clone())));
    }
    // A few times as many as a thread keeps.
    let kept = Arc::strong_count(&value);
    assert!(kept < 20 * IN_EVENT, "{kept}");
}
