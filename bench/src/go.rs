//! Programs in Go, `peers/NAME.go`, which the first bench that uses them compiles.

use crate::session::Session;
use crate::tool::{GO, make};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of a compiled program. `None` without a compiler.
pub(crate) fn program(session: &Session, name: &str) -> Result<Option<PathBuf>, String> {
    if !session.has(GO) {
        return Ok(None);
    }
    let binary = session.folder().join(format!("{name}-go"));
    if !binary.exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("peers/{name}.go"));
        let mut go = Command::new(GO.program);
        // The program has no dependencies, so Go must not search for them on the network.
        go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOPROXY", "off");
        go.current_dir(session.folder()).arg("build").arg("-o").arg(&binary).arg(source);
        make(go, &format!("{name}.go"))?;
    }
    Ok(Some(binary))
}
