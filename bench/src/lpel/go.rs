//! Go: `peers/lpel.go`, compiled when a bench first wants it. It is given and prints the same as the others.

use super::load::Load;
use crate::child::Running;
use crate::session::Session;
use crate::tool::GO;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The compiler's limit; the first time it compiles Go's own library.
const COMPILE_MAX: Duration = Duration::from_secs(300);

/// The program, compiled. `None` if there is no compiler.
pub(crate) fn program(session: &Session) -> Result<Option<PathBuf>, String> {
    if !session.has(GO) {
        return Ok(None);
    }
    let binary = session.folder().join("lpel-go");
    if !binary.exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/lpel.go");
        let mut go = Command::new(GO.program);
        // It wants nothing from outside, and must not look for it there.
        go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOPROXY", "off");
        go.current_dir(session.folder()).arg("build").arg("-o").arg(&binary).arg(source);
        let compiled = Running::start(go, false)?.wait(COMPILE_MAX)?;
        compiled.check().map_err(|why| format!("go does not compile lpel.go: {why}"))?;
    }
    Ok(Some(binary))
}

/// Becomes that program. Returns only if that does not work.
pub(crate) fn become_it(program: Option<&Path>, load: &Load) -> String {
    match program {
        Some(program) => {
            let failed = Command::new(program).args(load.arguments()).exec();
            format!("cannot start {}: {failed}", program.display())
        }
        None => "--program says where the program is".into(),
    }
}
