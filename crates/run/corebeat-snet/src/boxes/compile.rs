//! Boxes from source files in C and C++, and from code in programs: compiled when the program starts.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::c::Library;
use super::{LinkError, one_line};
use crate::label::Kind;
use crate::plan::BoxPlan;

/// Characters of a compiler's messages that are shown.
const MESSAGES_LEN_MAX: usize = 16 << 10;

/// Headers that boxes in C may include, by the names of their files: ours, and two of the original run-time that its boxes
/// include beside. Its `bool` is as large as an int, and boxes make fields of type int of it.
pub const C_HEADERS: [(&str, &str); 3] = [
    ("C4SNet.h", include_str!("../../include/C4SNet.h")),
    ("memfun.h", "#include \"C4SNet.h\"\n"),
    (
        "bool.h",
        "#if !defined(__cplusplus) && !defined(bool)\ntypedef int bool;\n#define false 0\n#define true 1\n#endif\n",
    ),
];

/// What older compilers of C took without a word, and newer ones refuse.
const OLD_C: [&str; 4] = [
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=implicit-int",
    "-Wno-error=int-conversion",
    "-Wno-error=incompatible-pointer-types",
];

/// What a file or the code in a program is written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    C,
    Cpp,
    Python,
}

impl Language {
    /// By the name before the code in a program.
    pub(super) fn named(name: &str) -> Option<Language> {
        match name.to_ascii_lowercase().as_str() {
            "c" | "c-language" => Some(Language::C),
            "c++" | "cpp" | "cxx" => Some(Language::Cpp),
            "python" | "python3" | "py" => Some(Language::Python),
            _ => None,
        }
    }

    /// By the end of a file's name.
    pub(super) fn of(path: &Path) -> Option<Language> {
        match path.extension()?.to_str()? {
            "c" => Some(Language::C),
            "cc" | "cpp" | "cxx" | "C" => Some(Language::Cpp),
            "py" => Some(Language::Python),
            _ => None,
        }
    }
}

/// What is to be compiled into one library.
pub(super) struct Job {
    folder: tempfile::TempDir,
    sources: Vec<(PathBuf, Language)>,
}

impl Job {
    pub(super) fn new() -> Result<Job, LinkError> {
        let folder = tempfile::Builder::new().prefix("corebeat-snet-").tempdir().map_err(folder_fault)?;
        let job = Job { folder, sources: Vec::new() };
        for (name, text) in C_HEADERS {
            job.write(name, text)?;
        }
        Ok(job)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, LinkError> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).map_err(folder_fault)?;
        Ok(path)
    }

    /// With a file.
    pub(super) fn file(&mut self, path: &Path, language: Language) {
        // As a path, whatever it begins with: `-x.c` is no option.
        self.sources.push((Path::new(".").join(path), language));
    }

    /// With code from a program.
    pub(super) fn code(&mut self, plan: &BoxPlan, code: &str, language: Language) -> Result<(), LinkError> {
        let name = format!(
            "{}_{}.{}",
            plan.name,
            self.sources.len(),
            if language == Language::C { "c" } else { "cpp" }
        );
        // A C++ function defined after this has the name that it would have in C.
        let declaration = match language {
            Language::Cpp => format!("extern \"C\" {};\n", prototype(plan)),
            _ => String::new(),
        };
        let text = format!("{declaration}#line 1 \"box {}\"\n{code}\n", plan.name);
        let path = self.write(&name, &text)?;
        self.sources.push((path, language));
        Ok(())
    }

    /// Compiles it all and loads the library.
    pub(super) fn run(self) -> Result<Library, LinkError> {
        let cpp = self.sources.iter().any(|(_, language)| *language == Language::Cpp);
        let c = self.sources.iter().any(|(_, language)| *language == Language::C);
        let library = self.folder.path().join("boxes.so");
        // The objects of one language are compiled in one go; a compiler of C++ links where there is any.
        let mut objects = Vec::new();
        if c && cpp {
            for (i, (path, language)) in self.sources.iter().enumerate() {
                let object = self.folder.path().join(format!("{i}.o"));
                self.compile(*language, ["-c".into(), "-o".into(), object.clone().into(), path.into()])?;
                objects.push(object);
            }
        } else {
            objects.extend(self.sources.iter().map(|(path, _)| path.clone()));
        }
        let mut arguments: Vec<OsString> = vec!["-shared".into(), "-o".into(), library.clone().into()];
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
    ) -> Result<(), LinkError> {
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
        // Warnings are for who writes the boxes, with a compiler at hand; here only errors are shown.
        // A function with a large frame touches the stack page by page, so that it meets the guard page and not what is
        // behind it.
        command.args(words).args([standard, "-O2", "-fPIC", "-fstack-clash-protection", "-w"]);
        if language == Language::C {
            command.args(OLD_C);
        }
        // The header first of all, so that another one beside a box, with the same guard, is passed over.
        command.arg("-I").arg(self.folder.path()).args(["-include", "C4SNet.h"]);
        let mut folders: Vec<&Path> = self.sources.iter().filter_map(|(path, _)| path.parent()).collect();
        folders.dedup();
        for folder in folders {
            command.arg("-I").arg(folder);
        }
        command.args(flags(options)).args(arguments);
        let ended = command.stdin(Stdio::null()).output().map_err(|e| LinkError::Compiler {
            compiler: compiler.to_string_lossy().into_owned(),
            variable,
            why: e.to_string(),
        })?;
        if ended.status.success() {
            return Ok(());
        }
        let mut messages = String::from_utf8_lossy(&ended.stderr).trim_end().to_string();
        if let Some((end, _)) = messages.char_indices().nth(MESSAGES_LEN_MAX) {
            messages.truncate(end);
            messages.push_str("\n...");
        }
        if messages.is_empty() {
            messages = format!("{}: {}", compiler.to_string_lossy(), one_line(&ended.status.to_string()));
        }
        Err(LinkError::Compile { messages })
    }
}

fn folder_fault(e: std::io::Error) -> LinkError {
    LinkError::Folder { folder: env::temp_dir(), why: e.to_string() }
}

/// The words of a variable, as `make` takes them.
fn flags(variable: &str) -> Vec<OsString> {
    let value = env::var(variable).unwrap_or_default();
    value.split_whitespace().map(OsString::from).collect()
}

/// The function that a box is in C.
fn prototype(plan: &BoxPlan) -> String {
    let mut text = format!("void *{}(void *", plan.name);
    for entry in plan.input.iter().flatten() {
        text.push_str(if entry.label.kind() == Kind::Field { ", c4snet_data_t *" } else { ", int" });
    }
    text + ")"
}
