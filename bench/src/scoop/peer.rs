//! The peers in Go and Java: `peers/scoop.go` and `peers/Scoop.java`. Their output has the same
//! format.

use super::subject::Subject;
use crate::go;
use crate::session::Session;
use crate::tool::{JAVA, JAVAC, make};
use std::path::Path;
use std::process::Command;

/// Java's heap, in MiB. The heap has this size from the start and never grows.
const HEAP_MIB: u32 = 3 << 10;

/// The program of a peer in Go or Java. `None` if its tools are missing.
pub(super) fn command(session: &Session, subject: Subject) -> Result<Option<Command>, String> {
    if subject == Subject::Go {
        return Ok(go::program(session, "scoop")?.map(Command::new));
    }
    if !session.has(JAVA) || !session.has(JAVAC) {
        return Ok(None);
    }
    if !session.folder().join("Scoop.class").exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/Scoop.java");
        let mut javac = Command::new(JAVAC.program);
        javac.arg("-d").arg(session.folder()).arg(source);
        make(javac, "Scoop.java")?;
    }
    let mut java = Command::new(JAVA.program);
    let heap = if session.quick { 64 } else { HEAP_MIB };
    java.args(["-XX:+UseSerialGC", &format!("-Xms{heap}m"), &format!("-Xmx{heap}m"), "-cp"]);
    java.arg(session.folder()).arg("Scoop");
    Ok(Some(java))
}
