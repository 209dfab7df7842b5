//! The example that records spans of the crate `tracing`.

use corebeat_probe::{Calls, Outcome};
use std::fs::File;

#[path = "../examples/tracing.rs"]
#[allow(dead_code, reason = "the main function of the example reads its arguments")]
mod bridge;

#[test]
fn spans_of_tracing_are_calls_with_fields_and_callers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    assert_eq!(bridge::record_order(&path).unwrap(), 9);
    let calls = Calls::read(File::open(&path).unwrap()).unwrap();
    assert_eq!((calls.calls().len(), calls.unmatched_events(), calls.lost()), (4, 0, 0));
    let mut fields = Vec::new();
    for (number, call) in (0..).zip(calls.calls()) {
        let name = calls.operation(call).function();
        assert_eq!(call.outcome, Outcome::Returned);
        assert_eq!(call.parent, (name == "price").then_some(0));
        fields.extend(calls.fields(number).map(|(field, value)| format!("{name} {field}={value}")));
    }
    fields.sort();
    let expected = ["order articles=3", "price article=0", "price article=1", "price article=2"];
    assert_eq!(fields, expected);
}
