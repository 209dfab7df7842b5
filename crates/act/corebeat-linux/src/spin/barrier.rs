//! Programs and libraries of `barrier.c`, whose functions are known.

use corebeat_test_group::{TestGroup, compile};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Compiles C code to a library. `None` if gcc is missing.
pub(crate) fn compiled(folder: &Path, code: &str, arguments: &[&str]) -> Option<PathBuf> {
    let source = folder.join("source.c");
    std::fs::write(&source, code).unwrap();
    let library = folder.join(format!("lib{}.so", arguments.concat().replace('/', "")));
    let arguments = [&["-shared", "-fPIC", "-DLIBRARY"], arguments].concat();
    let done = compile("gcc", &arguments, &source, &library);
    if !done {
        println!("skipped: gcc is missing");
    }
    done.then_some(library)
}

/// Compiles the library. `None` if gcc is missing.
pub(crate) fn library(folder: &Path, arguments: &[&str]) -> Option<PathBuf> {
    compiled(folder, include_str!("barrier.c"), arguments)
}

/// A process that calls a function of a library.
pub(crate) struct Caller {
    child: Child,
    group: TestGroup,
}

impl Caller {
    /// Starts the process, and waits until it has loaded the library. `None` if gcc is missing.
    pub(crate) fn start(folder: &Path, library: &Path, function: &str) -> Option<Caller> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/spin/barrier.c");
        let program = folder.join("caller");
        compile("gcc", &["-Wl,--no-as-needed", "-ldl"], &source, &program).then_some(())?;
        let (group, mut command) = (TestGroup::new(), Command::new(program));
        command.arg(library).arg(function).stdout(Stdio::piped());
        let mut child = group.add(&mut command).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{function} of {}", library.display());
        Some(Caller { child, group })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.group.kill();
        let _ = self.child.wait();
    }
}
