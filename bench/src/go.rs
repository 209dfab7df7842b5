//! Programs in Go, `peers/NAME.go`, compiled when a bench first wants them.

use crate::child::Running;
use crate::session::Session;
use crate::tool::GO;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The compiler's limit; the first time it compiles Go's own library.
const COMPILE_MAX: Duration = Duration::from_secs(300);

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
        let compiled = Running::start(go, false)?.wait(COMPILE_MAX)?;
        compiled.check().map_err(|why| format!("go does not compile {name}.go: {why}"))?;
    }
    Ok(Some(binary))
}
