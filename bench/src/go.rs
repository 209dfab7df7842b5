//! Programs in Go, `peers/NAME.go`, compiled when a bench first wants them.

use crate::session::Session;
use crate::tool::{GO, make};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of this name, compiled. `None` if there is no compiler.
pub(crate) fn program(session: &Session, name: &str) -> Result<Option<PathBuf>, String> {
    if !session.has(GO) {
        return Ok(None);
    }
    let binary = session.folder().join(format!("{name}-go"));
    if !binary.exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("peers/{name}.go"));
        let mut go = Command::new(GO.program);
        // It wants nothing from outside, and must not look for it there.
        go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOPROXY", "off");
        go.current_dir(session.folder()).arg("build").arg("-o").arg(&binary).arg(source);
        make(go, &format!("{name}.go"))?;
    }
    Ok(Some(binary))
}
