//! Functions of boxes: registered in Rust, loaded from libraries, or compiled from source files and
//! from code in programs.

mod c;
mod compile;
mod export;
mod field;
mod python;
mod rust;
mod signature;

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::body::{BoxBody, Out};
use crate::error::Error;
use crate::plan::BoxPlan;
use compile::{Job, Language};
use signature::Signature;

pub use c::C_ENTRIES_MAX;
pub use compile::C_HEADERS;
pub use export::Export;
pub use field::FIELDS_MAX;
pub use rust::{Argument, Arguments, Ending, Row, Shared, Tag};

/// Functions for boxes, by name.
///
/// ```
/// use corebeat_snet::Boxes;
/// use corebeat_snet::body::Out;
///
/// # fn main() -> Result<(), corebeat_snet::Error> {
/// let boxes = Boxes::new().with("down", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| {
///     if a > 0 { out.emit(1, (a - 1,)) } else { out.emit(2, ("done",)) }
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// The code of a box in the program has precedence over functions in Rust, and these over libraries
/// and source files, in the order of their registration.
#[derive(Default)]
pub struct Boxes {
    functions: HashMap<String, Registered>,
    files: Vec<File>,
    /// Compiled code of programs, by box and code.
    bodies: HashMap<(String, String), Arc<dyn BoxBody>>,
}

struct Registered {
    /// `None` if unknown.
    signature: Option<Signature>,
    body: Arc<dyn BoxBody>,
}

enum File {
    Library(c::Library),
    Python(PathBuf, Arc<python::Script>),
}

impl Boxes {
    /// Creates an empty collection.
    pub fn new() -> Boxes {
        Boxes::default()
    }

    /// Adds a function in Rust for a box. The function takes a tuple of the values in the
    /// signature, in its order: [`Tag`] for tags, and for fields numbers, `String`, `Vec`s of
    /// numbers, [`Shared`] for any Rust type, and the other types of [`Argument`]. It outputs
    /// tuples of these types with [`Out::emit`], and returns `()` or a `Result` whose error is the
    /// error of the box.
    ///
    /// # Errors
    ///
    /// Returns an error if the signature is invalid, the function takes other arguments, or the box
    /// has a function already.
    pub fn with<A, R, F>(self, name: &str, signature: &str, function: F) -> Result<Boxes, Error>
    where
        A: Arguments + 'static,
        R: Ending,
        F: Fn(A, &mut Out<'_>) -> R + Send + Sync + 'static,
    {
        let read = Signature::read(signature).map_err(|why| Error::Signature {
            name: name.into(),
            signature: signature.into(),
            why,
        })?;
        if let Some(why) = rust::unfit::<A>(&read) {
            return Err(Error::Arguments { name: name.into(), signature: read.to_string(), why });
        }
        self.add(
            name,
            Some(read),
            Arc::new(rust::Function { function, arguments: PhantomData::<fn(A)> }),
        )
    }

    /// Adds a box that accepts any signature and checks its values itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the box has a function already.
    pub fn with_body(self, name: &str, body: Arc<dyn BoxBody>) -> Result<Boxes, Error> {
        self.add(name, None, body)
    }

    fn add(
        mut self,
        name: &str,
        signature: Option<Signature>,
        body: Arc<dyn BoxBody>,
    ) -> Result<Boxes, Error> {
        match self.functions.insert(name.into(), Registered { signature, body }) {
            None => Ok(self),
            Some(_) => Err(Error::DuplicateFunction { name: name.into() }),
        }
    }

    /// Loads a shared library: one whose functions, compiled with the first of [`C_HEADERS`], are
    /// boxes of the same names, or one in Rust that [`export_boxes!`](crate::export_boxes) exports.
    /// The library stays loaded until the process ends.
    ///
    /// A library runs inside the process: a box that crashes ends the process, and a box that takes
    /// other arguments than the program declares has undefined behaviour.
    ///
    /// # Errors
    ///
    /// Returns an error if the library cannot be loaded, contains no boxes, or was compiled with
    /// another version of the header.
    pub fn load_library(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.files.push(File::Library(c::Library::load(path.as_ref())?));
        Ok(())
    }

    /// Compiles source files. All C and C++ files become one library, which is loaded as in
    /// [`load_library`](Self::load_library). Each Python file is a separate program, whose
    /// functions are boxes. A folder is a crate of the type `cdylib`, which `cargo build --release`
    /// builds, and whose library is loaded.
    ///
    /// The compilers are `cc` and `c++`, or the values of `CC` and `CXX`. `CFLAGS`, `CXXFLAGS`,
    /// `LDFLAGS` and `LDLIBS` apply. Each Python box that runs at the same time has a `python3`
    /// process.
    ///
    /// # Errors
    ///
    /// Returns an error if a compiler does not start or reports errors.
    pub fn compile<P: AsRef<Path>>(
        &mut self,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<(), Error> {
        let mut job = None;
        for path in paths {
            let path = path.as_ref();
            if path.is_dir() {
                self.load_library(compile::build_crate(path)?)?;
                continue;
            }
            match Language::of(path) {
                None => return Err(Error::UnsupportedSource { path: path.into() }),
                Some(Language::Python) => {
                    self.files.push(File::Python(path.into(), python::Script::file(path)?))
                }
                Some(language) => {
                    let job = match &mut job {
                        Some(job) => job,
                        none => none.insert(Job::new()?),
                    };
                    job.file(path, language);
                }
            }
        }
        if let Some(job) = job {
            self.files.push(File::Library(job.run()?));
        }
        Ok(())
    }

    /// Compiles the code of all boxes of a program together. ([`find`](Self::find) compiles the
    /// code of a single box if this method has not compiled it.)
    ///
    /// # Errors
    ///
    /// Returns an error if the language is not supported, or if the code does not compile.
    pub fn compile_bodies(&mut self, plans: &[Arc<BoxPlan>]) -> Result<(), Error> {
        self.bodies.extend(compiled(plans.iter().map(|plan| &**plan))?);
        Ok(())
    }

    /// Returns the function for a box of a program.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no function, or if the function has another signature.
    pub fn find(&self, plan: &BoxPlan) -> Result<Arc<dyn BoxBody>, Error> {
        if let Some(body) = &plan.body {
            if let Some(known) = self.bodies.get(&(plan.name.clone(), body.code.clone())) {
                return Ok(Arc::clone(known));
            }
            let (_, made) = compiled([plan])?.remove(0);
            return Ok(made);
        }
        if let Some(registered) = self.functions.get(&plan.name) {
            return match &registered.signature {
                Some(signature) if !signature.fits(plan) => Err(Error::SignatureMismatch {
                    plan: plan.to_string(),
                    function: format!("{} ({signature})", plan.name),
                }),
                _ => Ok(Arc::clone(&registered.body)),
            };
        }
        for file in &self.files {
            match file {
                File::Library(library) => {
                    if let Some(function) = library.find(plan)? {
                        return Ok(Arc::new(function));
                    }
                }
                File::Python(_, script) => {
                    if let Some(function) = script.find(plan) {
                        return Ok(Arc::new(function));
                    }
                }
            }
        }
        let searched: Vec<String> =
            self.files.iter().map(|file| file.path().display().to_string()).collect();
        Err(Error::MissingFunction {
            name: plan.name.clone(),
            searched: if searched.is_empty() {
                String::new()
            } else {
                format!(" in {}", searched.join(", "))
            },
            cure: match searched.is_empty() {
                true => {
                    "add a library or a source file that defines it, or write its code into the \
                     program"
                }
                false if self.files.iter().all(|file| matches!(file, File::Python(..))) => {
                    PYTHON_CURE
                }
                false => {
                    "define a C or Python function with the name of the box (in C++ as `extern \
                     \"C\"`, and not `static`), or export it from Rust with `export_boxes!`"
                }
            },
        })
    }

    /// Number of fields that boxes in C hold in the whole process, at most [`FIELDS_MAX`]. While no
    /// box runs, these are fields that boxes have neither freed nor output.
    pub fn fields_held() -> usize {
        field::count()
    }
}

/// Box with code in the program (its name and code), and its function.
type Compiled = ((String, String), Arc<dyn BoxBody>);

/// Correction if Python code has no function for a box.
const PYTHON_CURE: &str = "define a function with the name of the box (`def`)";

/// The error for code of a box without its function.
fn missing(plan: &BoxPlan, cure: &'static str) -> Error {
    Error::MissingFunction { name: plan.name.clone(), searched: " in its code".into(), cure }
}

/// Compiles the code of boxes.
fn compiled<'a>(plans: impl IntoIterator<Item = &'a BoxPlan>) -> Result<Vec<Compiled>, Error> {
    let mut job = None;
    let mut made: Vec<Compiled> = Vec::new();
    let mut waiting = Vec::new();
    for plan in plans {
        let Some(body) = &plan.body else { continue };
        let key = (plan.name.clone(), body.code.clone());
        match Language::named(&body.language.text) {
            None => {
                let (name, language) = (plan.name.clone(), body.language.text.clone());
                return Err(Error::UnsupportedLanguage { name, language });
            }
            Some(Language::Python) => {
                let what = format!("box {}", plan.name);
                let function = python::Script::new(what, &body.code)?
                    .find(plan)
                    .ok_or_else(|| missing(plan, PYTHON_CURE))?;
                made.push((key, Arc::new(function)));
            }
            Some(language) => {
                let job = match &mut job {
                    Some(job) => job,
                    none => none.insert(Job::new()?),
                };
                job.code(plan, &body.code, language)?;
                waiting.push((key, plan));
            }
        }
    }
    if let Some(job) = job {
        let library = job.run()?;
        for (key, plan) in waiting {
            let function = library.find(plan)?.ok_or_else(|| {
                missing(plan, "define a function with the name of the box that is not `static`")
            })?;
            made.push((key, Arc::new(function)));
        }
    }
    Ok(made)
}

impl File {
    fn path(&self) -> &Path {
        match self {
            File::Library(library) => &library.path,
            File::Python(path, _) => path,
        }
    }
}

/// Names of the functions and files.
impl fmt::Debug for Boxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&String> = self.functions.keys().collect();
        names.sort();
        let files: Vec<&Path> = self.files.iter().map(File::path).collect();
        f.debug_struct("Boxes").field("functions", &names).field("files", &files).finish()
    }
}

/// Joins the lines of a foreign message.
fn one_line(text: &str) -> String {
    text.split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
