//! The functions behind boxes: given in Rust, loaded from libraries, compiled from source files and from code in programs.

mod c;
mod compile;
mod field;
mod python;
mod rust;
mod signature;

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::body::{BoxBody, Out};
use crate::plan::BoxPlan;
use compile::{Job, Language};
use signature::Signature;

pub use c::C_ENTRIES_MAX;
pub use compile::C_HEADERS;
pub use field::FIELDS_MAX;
pub use rust::{Argument, Arguments, Ending, Row, Shared, Tag};

/// The functions that there are for boxes, by their names.
///
/// ```
/// use corebeat_snet::Boxes;
/// use corebeat_snet::body::Out;
///
/// # fn main() -> Result<(), corebeat_snet::LinkError> {
/// let boxes = Boxes::new().with("down", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| {
///     if a > 0 { out.emit(1, (a - 1,)) } else { out.emit(2, ("done",)) }
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// What a program brings itself as a box's code comes first, then functions in Rust, then libraries and source files in the
/// order they were given.
#[derive(Default)]
pub struct Boxes {
    functions: HashMap<String, Given>,
    files: Vec<File>,
    /// What was compiled of programs, by box and code.
    bodies: HashMap<(String, String), Arc<dyn BoxBody>>,
}

struct Given {
    /// If it is known.
    signature: Option<Signature>,
    body: Arc<dyn BoxBody>,
}

enum File {
    Library(c::Library),
    Python(PathBuf, Arc<python::Script>),
}

/// Why there is no function for a box.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A signature that is none.
    #[error("the signature `{signature}` of box {name}: {why}; write it as `(A, <T>) -> (A) | (B)`")]
    Signature {
        /// The box.
        name: String,
        /// As given.
        signature: String,
        /// What is wrong with it.
        why: String,
    },
    /// A function that takes other things than its signature says.
    #[error("box {name} {signature}: {why}")]
    Arguments {
        /// The box.
        name: String,
        /// The signature.
        signature: String,
        /// What is wrong.
        why: String,
    },
    /// Two functions of one name.
    #[error("box {name} is given twice")]
    Twice {
        /// The box.
        name: String,
    },
    /// A box without a function.
    #[error("box {name} has no function{searched}; {cure}")]
    Unknown {
        /// The box.
        name: String,
        /// Where it was searched.
        searched: String,
        /// What to do.
        cure: &'static str,
    },
    /// A program that declares a box in another way than the function does.
    #[error("the program declares box {plan}, and its function is {given}: make them the same")]
    Differs {
        /// As the program declares it.
        plan: String,
        /// As it is given.
        given: String,
    },
    /// A library that cannot be used.
    #[error("{}: {why}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A box that C cannot be given.
    #[error(
        "box {plan} has more than {C_ENTRIES_MAX} fields and tags in one list, the most that a box in C can have"
    )]
    TooManyEntries {
        /// As the program declares it.
        plan: String,
    },
    /// Code in a language that nobody here speaks.
    #[error("box {name} is written in {language}: write it in C, C++ or Python, or give it in Rust")]
    Language {
        /// The box.
        name: String,
        /// Its language.
        language: String,
    },
    /// A file of which it is not known what it is.
    #[error("{}: a source file ends in .c, .cc, .cpp, .cxx or .py", path.display())]
    Source {
        /// The file.
        path: PathBuf,
    },
    /// A compiler that does not start.
    #[error("the compiler {compiler} does not start: {why}; install one, or name it in {variable}")]
    Compiler {
        /// Its name.
        compiler: String,
        /// The variable that names it.
        variable: &'static str,
        /// Why.
        why: String,
    },
    /// Code that does not compile.
    #[error("the boxes do not compile:\n{messages}")]
    Compile {
        /// What the compiler says.
        messages: String,
    },
    /// Code in Python that does not load.
    #[error("{what} in Python: {why}")]
    Python {
        /// A box or a file.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// No room for what is compiled.
    #[error("nothing can be written in {}: {why}; name another folder in TMPDIR", folder.display())]
    Folder {
        /// Where.
        folder: PathBuf,
        /// Why.
        why: String,
    },
}

impl Boxes {
    /// None.
    pub fn new() -> Boxes {
        Boxes::default()
    }

    /// With a function in Rust for a box. It takes a tuple of what stands in the signature, in that order ([`Tag`] for tags; for
    /// fields numbers, `String`, `Vec`s of numbers, [`Shared`] for any Rust type, and more: see [`Argument`]), and puts out
    /// with [`Out::emit`] tuples of the same. It returns nothing, or a `Result` whose error is the box's.
    ///
    /// # Errors
    ///
    /// When the signature is none, the function takes something else, or there is such a box.
    pub fn with<A, R, F>(self, name: &str, signature: &str, function: F) -> Result<Boxes, LinkError>
    where
        A: Arguments + 'static,
        R: Ending,
        F: Fn(A, &mut Out<'_>) -> R + Send + Sync + 'static,
    {
        let read = Signature::read(signature).map_err(|why| LinkError::Signature {
            name: name.into(),
            signature: signature.into(),
            why,
        })?;
        if let Some(why) = rust::unfit::<A>(&read) {
            return Err(LinkError::Arguments { name: name.into(), signature: read.to_string(), why });
        }
        self.add(name, Some(read), Arc::new(rust::Function { function, arguments: PhantomData::<fn(A)> }))
    }

    /// With a box of any signature that looks after its values itself.
    ///
    /// # Errors
    ///
    /// When there is such a box.
    pub fn with_body(self, name: &str, body: Arc<dyn BoxBody>) -> Result<Boxes, LinkError> {
        self.add(name, None, body)
    }

    fn add(
        mut self,
        name: &str,
        signature: Option<Signature>,
        body: Arc<dyn BoxBody>,
    ) -> Result<Boxes, LinkError> {
        match self.functions.insert(name.into(), Given { signature, body }) {
            None => Ok(self),
            Some(_) => Err(LinkError::Twice { name: name.into() }),
        }
    }

    /// Loads a shared library whose functions, made with the first of [`C_HEADERS`], are boxes of the same names. It stays loaded until the
    /// process ends.
    ///
    /// A library is trusted as the program is: a box that crashes ends the process, and one that takes other arguments than
    /// the program declares does what C leaves undefined.
    ///
    /// # Errors
    ///
    /// When it cannot be loaded, has no boxes, or was made with another version of the header.
    pub fn load_library(&mut self, path: impl AsRef<Path>) -> Result<(), LinkError> {
        self.files.push(File::Library(c::Library::load(path.as_ref())?));
        Ok(())
    }

    /// Compiles source files: C and C++ all into one library, which is loaded as in [`load_library`](Self::load_library), and
    /// each in Python as a program of its own, whose functions are boxes.
    ///
    /// The compilers are `cc` and `c++`, or what `CC` and `CXX` name; `CFLAGS`, `CXXFLAGS`, `LDFLAGS` and `LDLIBS` are
    /// looked at as well. For Python, `python3` is started, once for each box that runs at a time.
    ///
    /// # Errors
    ///
    /// When there is no compiler, or it finds errors.
    pub fn compile<P: AsRef<Path>>(&mut self, paths: impl IntoIterator<Item = P>) -> Result<(), LinkError> {
        let mut job = None;
        for path in paths {
            let path = path.as_ref();
            match Language::of(path) {
                None => return Err(LinkError::Source { path: path.into() }),
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

    /// Compiles the code that a program has for its boxes, all in one go. ([`find`](Self::find) does the same, box by box, for
    /// those that this was not called for.)
    ///
    /// # Errors
    ///
    /// When it is in no language that is known here, or does not compile.
    pub fn compile_bodies(&mut self, plans: &[Arc<BoxPlan>]) -> Result<(), LinkError> {
        self.bodies.extend(compiled(plans.iter().map(|plan| &**plan))?);
        Ok(())
    }

    /// The function for a box of a program.
    ///
    /// # Errors
    ///
    /// When there is none, or one with another signature.
    pub fn find(&self, plan: &BoxPlan) -> Result<Arc<dyn BoxBody>, LinkError> {
        if let Some(body) = &plan.body {
            if let Some(known) = self.bodies.get(&(plan.name.clone(), body.code.clone())) {
                return Ok(Arc::clone(known));
            }
            let (_, made) = compiled([plan])?.remove(0);
            return Ok(made);
        }
        if let Some(given) = self.functions.get(&plan.name) {
            return match &given.signature {
                Some(signature) if !signature.fits(plan) => Err(LinkError::Differs {
                    plan: plan.to_string(),
                    given: format!("{} ({signature})", plan.name),
                }),
                _ => Ok(Arc::clone(&given.body)),
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
        let searched: Vec<String> = self.files.iter().map(|file| file.path().display().to_string()).collect();
        Err(LinkError::Unknown {
            name: plan.name.clone(),
            searched: if searched.is_empty() {
                String::new()
            } else {
                format!(" in {}", searched.join(", "))
            },
            cure: match searched.is_empty() {
                true => "give a library or a source file that has it, or write it into the program",
                false if self.files.iter().all(|file| matches!(file, File::Python(..))) => PYTHON_CURE,
                false => {
                    "name a function of C or Python like the box (in C++ as `extern \"C\"`, and not `static`)"
                }
            },
        })
    }

    /// How many fields boxes in C hold at this moment, in the whole process. Where no box runs, these are fields that boxes
    /// have neither freed nor put out; [`FIELDS_MAX`] is the most.
    pub fn fields_held() -> usize {
        field::count()
    }
}

/// A box with code in the program, and its function.
type Compiled = ((String, String), Arc<dyn BoxBody>);

/// What to do where code in Python has no function for a box.
const PYTHON_CURE: &str = "define one that is named like the box (`def`)";

/// There is no function in the code of a box.
fn nothing(plan: &BoxPlan, cure: &'static str) -> LinkError {
    LinkError::Unknown { name: plan.name.clone(), searched: " in its code".into(), cure }
}

/// The functions of boxes that have code in the program, compiled.
fn compiled<'a>(plans: impl IntoIterator<Item = &'a BoxPlan>) -> Result<Vec<Compiled>, LinkError> {
    let mut job = None;
    let mut made: Vec<Compiled> = Vec::new();
    let mut waiting = Vec::new();
    for plan in plans {
        let Some(body) = &plan.body else { continue };
        let key = (plan.name.clone(), body.code.clone());
        match Language::named(&body.language.text) {
            None => {
                let (name, language) = (plan.name.clone(), body.language.text.clone());
                return Err(LinkError::Language { name, language });
            }
            Some(Language::Python) => {
                let what = format!("box {}", plan.name);
                let function = python::Script::new(what, &body.code)?
                    .find(plan)
                    .ok_or_else(|| nothing(plan, PYTHON_CURE))?;
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
            let function = library
                .find(plan)?
                .ok_or_else(|| nothing(plan, "define one that is named like the box, and is not `static`"))?;
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

/// The names of the functions and files.
impl fmt::Debug for Boxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&String> = self.functions.keys().collect();
        names.sort();
        let files: Vec<&Path> = self.files.iter().map(File::path).collect();
        f.debug_struct("Boxes").field("functions", &names).field("files", &files).finish()
    }
}

/// A message of somebody else, without line breaks.
fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
