//! The runtime of rewritten packages.

use std::process::Command;

/// serde_json implements `PartialEq<Value>` for numbers and texts. In a package that depends on it,
/// `assert_eq!(bytes, [])` has an ambiguous type.
#[test]
fn the_runtime_does_not_depend_on_serde_json() {
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parallel/corebeat-future/Cargo.toml");
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--manifest-path", runtime])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&tree.stdout);
    assert!(text.contains("corebeat-probe "), "{text}");
    assert!(!text.contains("serde_json "), "{text}");
}
