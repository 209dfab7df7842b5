//! Compiler driver for boxes in C and C++, from source files and from code in programs, and for
//! crates of boxes in Rust.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::c::Library;
use super::one_line;
use crate::error::Error;
use crate::label::Kind;
use crate::plan::BoxPlan;

/// Characters of a compiler's messages in an error.
const MESSAGES_LEN_MAX: usize = 16 << 10;

/// Headers for boxes in C, by file name: the header of Corebeat, and two headers of S-Net's first
/// run-time system. The `bool` of that system has the size of an `int`, and boxes create `int`
/// fields from it.
pub const C_HEADERS: [(&str, &str); 3] = [
    ("C4SNet.h", include_str!("../../include/C4SNet.h")),
    ("memfun.h", "#include \"C4SNet.h\"\n"),
    (
        "bool.h",
        "#if !defined(__cplusplus) && !defined(bool)\ntypedef int bool;\n\
         #define false 0\n#define true 1\n#endif\n",
    ),
];

/// Options for C code that older compilers accept and newer ones refuse.
const OLD_C: [&str; 4] = [
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=implicit-int",
    "-Wno-error=int-conversion",
    "-Wno-error=incompatible-pointer-types",
];

/// Language of a file or of code in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    C,
    Cpp,
    Python,
}

impl Language {
    /// Returns the language with this name in a program.
    pub(super) fn named(name: &str) -> Option<Language> {
        match name.to_ascii_lowercase().as_str() {
            "c" | "c-language" => Some(Language::C),
            "c++" | "cpp" | "cxx" => Some(Language::Cpp),
            "python" | "python3" | "py" => Some(Language::Python),
            _ => None,
        }
    }

    /// Returns the language of a file by its extension.
    pub(super) fn of(path: &Path) -> Option<Language> {
        match path.extension()?.to_str()? {
            "c" => Some(Language::C),
            "cc" | "cpp" | "cxx" | "C" => Some(Language::Cpp),
            "py" => Some(Language::Python),
            _ => None,
        }
    }
}

/// Sources to compile into one library.
pub(super) struct Job {
    folder: tempfile::TempDir,
    sources: Vec<(PathBuf, Language)>,
}

impl Job {
    pub(super) fn new() -> Result<Job, Error> {
        let folder =
            tempfile::Builder::new().prefix("corebeat-snet-").tempdir().map_err(folder_error)?;
        let job = Job { folder, sources: Vec::new() };
        for (name, text) in C_HEADERS {
            job.write(name, text)?;
        }
        Ok(job)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).map_err(folder_error)?;
        Ok(path)
    }

    /// Adds a file.
    pub(super) fn file(&mut self, path: &Path, language: Language) {
        // The prefix prevents that a name such as `-x.c` is an option.
        self.sources.push((Path::new(".").join(path), language));
    }

    /// Adds code from a program.
    pub(super) fn code(
        &mut self,
        plan: &BoxPlan,
        code: &str,
        language: Language,
    ) -> Result<(), Error> {
        let name = format!(
            "{}_{}.{}",
            plan.name,
            self.sources.len(),
            if language == Language::C { "c" } else { "cpp" }
        );
        // This declaration gives a later C++ definition its C name.
        let declaration = match language {
            Language::Cpp => format!("extern \"C\" {};\n", prototype(plan)),
            _ => String::new(),
        };
        let text = format!("{declaration}#line 1 \"box {}\"\n{code}\n", plan.name);
        let path = self.write(&name, &text)?;
        self.sources.push((path, language));
        Ok(())
    }

    /// Compiles the sources and loads the library.
    pub(super) fn run(self) -> Result<Library, Error> {
        let cpp = self.sources.iter().any(|(_, language)| *language == Language::Cpp);
        let c = self.sources.iter().any(|(_, language)| *language == Language::C);
        let library = self.folder.path().join("boxes.so");
        // Sources of one language are compiled by one command. If any source is in C++, the C++
        // compiler links.
        let mut objects = Vec::new();
        if c && cpp {
            for (i, (path, language)) in self.sources.iter().enumerate() {
                let object = self.folder.path().join(format!("{i}.o"));
                self.compile(
                    *language,
                    ["-c".into(), "-o".into(), object.clone().into(), path.into()],
                )?;
                objects.push(object);
            }
        } else {
            objects.extend(self.sources.iter().map(|(path, _)| path.clone()));
        }
        let mut arguments: Vec<OsString> =
            vec!["-shared".into(), "-o".into(), library.clone().into()];
        arguments.extend(flags("LDFLAGS"));
        arguments.extend(objects.into_iter().map(OsString::from));
        arguments.extend(flags("LDLIBS"));
        arguments.push("-lm".into());
        self.compile(if cpp { Language::Cpp } else { Language::C }, arguments)?;
        Library::load(&library)
    }

    /// Starts the compiler.
    fn compile(
        &self,
        language: Language,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<(), Error> {
        let (variable, usual, options, standard) = match language {
            Language::Cpp => ("CXX", "c++", "CXXFLAGS", "-std=gnu++17"),
            _ => ("CC", "cc", "CFLAGS", "-std=gnu17"),
        };
        let mut words = flags(variable);
        if words.is_empty() {
            words.push(usual.into());
        }
        let compiler = words.remove(0);
        let mut command = Command::new(&compiler);
        // Only errors are shown here. With `-fstack-clash-protection`, a function with a large
        // frame touches the stack page by page, so that it hits the guard page instead of other
        // memory.
        command.args(words).args([standard, "-O2", "-fPIC", "-fstack-clash-protection", "-w"]);
        if language == Language::C {
            command.args(OLD_C);
        }
        // The header is included first, so that its include guard disables another copy of it.
        command.arg("-I").arg(self.folder.path()).args(["-include", "C4SNet.h"]);
        let mut folders: Vec<&Path> =
            self.sources.iter().filter_map(|(path, _)| path.parent()).collect();
        folders.dedup();
        for folder in folders {
            command.arg("-I").arg(folder);
        }
        command.args(flags(options)).args(arguments);
        let ended = command.stdin(Stdio::null()).output().map_err(|e| Error::Compiler {
            compiler: compiler.to_string_lossy().into_owned(),
            variable,
            why: e.to_string(),
        })?;
        require_success(&compiler, &ended)
    }
}

/// Returns the messages of a compiler that failed.
fn require_success(compiler: &OsStr, ended: &Output) -> Result<(), Error> {
    if ended.status.success() {
        return Ok(());
    }
    let mut messages = String::from_utf8_lossy(&ended.stderr).trim_end().to_string();
    if let Some((end, _)) = messages.char_indices().nth(MESSAGES_LEN_MAX) {
        messages.truncate(end);
        messages.push_str("\n...");
    }
    if messages.is_empty() {
        messages =
            format!("{}: {}", compiler.to_string_lossy(), one_line(&ended.status.to_string()));
    }
    Err(Error::Compilation { messages })
}

/// Builds a crate in Rust. Returns its library.
pub(super) fn build_crate(folder: &Path) -> Result<PathBuf, Error> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended = Command::new(&cargo)
        .args(["build", "--release", "--message-format=json-render-diagnostics", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::Compiler {
            compiler: cargo.to_string_lossy().into_owned(),
            variable: "CARGO",
            why: e.to_string(),
        })?;
    require_success(&cargo, &ended)?;
    // Cargo reports one artifact in each line, and that of the crate after its dependencies.
    let libraries = ended.stdout.split(|b| *b == b'\n').rev().filter_map(|line| {
        let artifact: serde_json::Value = serde_json::from_slice(line).ok()?;
        let kinds = artifact["target"]["crate_types"].as_array()?;
        let file = artifact["filenames"].as_array()?.first()?.as_str()?;
        kinds.iter().any(|kind| kind == "cdylib").then(|| PathBuf::from(file))
    });
    libraries.into_iter().next().ok_or_else(|| Error::Library {
        path: folder.into(),
        why:
            "the crate has no library of boxes: add `crate-type = [\"cdylib\"]` to `[lib]` in its \
              Cargo.toml"
                .into(),
    })
}

fn folder_error(e: std::io::Error) -> Error {
    Error::TemporaryFolder { folder: env::temp_dir(), why: e.to_string() }
}

/// Words of an environment variable, separated like in `make`.
fn flags(variable: &str) -> Vec<OsString> {
    let value = env::var(variable).unwrap_or_default();
    value.split_whitespace().map(OsString::from).collect()
}

/// C declaration of the function of a box.
fn prototype(plan: &BoxPlan) -> String {
    let mut text = format!("void *{}(void *", plan.name);
    for entry in plan.input.iter().flatten() {
        text.push_str(if entry.label.kind() == Kind::Field {
            ", c4snet_data_t *"
        } else {
            ", int"
        });
    }
    text + ")"
}
