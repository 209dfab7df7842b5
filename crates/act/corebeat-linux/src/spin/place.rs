//! Places in code where threads spin, and the functions that contain the places.
//!
//! ```text
//!   a spinning sample at a new address:  ip -> mapping -> Place (file, offset); opens the file
//!   at most once a second, at a report:  Place -> name, by its symbols; closes the file
//!   at a report, on the screen:          SpinTimes (time by Place) -> time by Function
//! ```
//!
//! A file is opened while a process maps it, because its path may name another file later. The
//! device, inode and change time of the open file identify its contents from then on.

use super::mapping::{self, Mapping};
use super::symbol;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time from one search for names to the next.
const SEARCH_PERIOD: Duration = Duration::from_millis(980);

/// Number of files that wait for a search. Places in further files have no names.
const FILES_MAX: usize = 64;

/// Number of names in the cache; a full cache is emptied.
const NAMES_MAX: usize = 1 << 14;

/// Number of places in a sum; the time at further places counts as spinning at an unknown place.
const PLACES_MAX: usize = 1 << 12;

/// Distance of places up to which they count as one place if they have no names: the samples of a
/// loop have several addresses.
const LOOP_BYTES: u64 = 256;

/// Place in the code of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// In a mapped file.
    File {
        path: String,
        offset: u64,
        /// `None` if the file could not be opened.
        contents: Option<Contents>,
    },
    /// In the vDSO.
    Vdso,
    /// In memory that maps no file: generated code.
    Anonymous,
    /// The mappings of the process could not be read.
    Unknown,
}

/// Identity of the contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Contents {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Contents {
    fn of(file: &File) -> Option<Contents> {
        let data = file.metadata().ok()?;
        let changed = (data.ctime(), data.ctime_nsec());
        Some(Contents { device: data.dev(), inode: data.ino(), changed })
    }
}

/// Function in which threads spin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "Fields")]
pub enum Function {
    /// A function with a symbol.
    Named {
        /// Name in the source for Rust and C++, without parameters; cut after 200 characters. The
        /// name may contain control characters.
        name: String,
        /// Path of the file that contains the code, in the mount namespace of the program.
        file: String,
    },
    /// Code without a symbol, in a file that is stripped, damaged, deleted, replaced or hidden.
    Unnamed {
        /// Path of the file.
        file: String,
        /// Offset of an instruction of the loop in the file, in bytes.
        offset: u64,
    },
    /// Code in the vDSO, with which the C library reads clocks without a system call.
    Vdso,
    /// Code in memory that maps no file, such as generated code.
    Anonymous,
    /// The process ended, or its mappings are hidden.
    Unknown,
}

/// The fields of a function in JSON, which do not depend on the kind of the function.
#[derive(Serialize)]
struct Fields {
    function: Option<String>,
    file: Option<String>,
    offset: Option<u64>,
}

impl From<Function> for Fields {
    fn from(function: Function) -> Fields {
        let (function, file, offset) = match function {
            Function::Named { name, file } => (Some(name), Some(file), None),
            Function::Unnamed { file, offset } => (None, Some(file), Some(offset)),
            Function::Vdso => (None, Some("[vdso]".into()), None),
            Function::Anonymous | Function::Unknown => (None, None, None),
        };
        Fields { function, file, offset }
    }
}

impl Function {
    /// Returns the name alone, or the shortest text that identifies the place.
    pub fn short(&self) -> String {
        match self {
            Function::Named { name, .. } => name.clone(),
            Function::Unnamed { file, offset } => format!("{}+{offset:#x}", base_name(file)),
            Function::Vdso => "vDSO".into(),
            Function::Anonymous => "anonymous memory".into(),
            Function::Unknown => "unknown".into(),
        }
    }

    /// Returns whether the other one is the same function, or without a name part of the same loop.
    fn is_same(&self, other: &Function) -> bool {
        match (self, other) {
            (
                Function::Unnamed { file, offset },
                Function::Unnamed { file: other_file, offset: other },
            ) => file == other_file && offset.abs_diff(*other) <= LOOP_BYTES,
            _ => self == other,
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Function::Named { name, file } => write!(f, "{name} in {}", base_name(file)),
            Function::Unnamed { .. } => write!(f, "unknown function at {}", self.short()),
            Function::Vdso => f.write_str("the vDSO"),
            Function::Anonymous => f.write_str("unknown function in anonymous memory"),
            Function::Unknown => f.write_str("unknown function"),
        }
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Time that threads spun in one function.
#[derive(Debug, Clone, PartialEq)]
pub struct SpinFunction {
    /// The function.
    pub function: Function,
    /// Sum over the threads, in nanoseconds.
    pub time_ns: f64,
}

impl SpinFunction {
    /// Adds up the times of equal functions. Returns the functions in the order of their times, the
    /// longest first. Places without names that are close to each other count as one function, with
    /// the offset of the place with the longest time.
    pub fn ranking(all: impl IntoIterator<Item = SpinFunction>) -> Vec<SpinFunction> {
        let mut all: Vec<SpinFunction> = all.into_iter().collect();
        let longest_first = |all: &mut Vec<SpinFunction>| {
            all.sort_by(|a, b| b.time_ns.total_cmp(&a.time_ns));
        };
        longest_first(&mut all);
        let mut ranking: Vec<SpinFunction> = Vec::new();
        for SpinFunction { function, time_ns } in all {
            match ranking.iter_mut().find(|other| other.function.is_same(&function)) {
                Some(same) => same.time_ns += time_ns,
                None => ranking.push(SpinFunction { function, time_ns }),
            }
        }
        longest_first(&mut ranking);
        ranking
    }
}

/// Time that threads spun, by the places in the code.
#[derive(Debug, Clone, Default)]
pub struct SpinTimes(HashMap<Arc<Place>, f64>);

impl SpinTimes {
    /// Adds the times of others.
    pub fn merge(&mut self, other: SpinTimes) {
        other.0.into_iter().for_each(|(place, ns)| self.add(place, ns));
    }

    pub(crate) fn add(&mut self, place: Arc<Place>, ns: f64) {
        let has_room = self.0.len() < PLACES_MAX || self.0.contains_key(&place);
        *self.0.entry(if has_room { place } else { Place::Unknown.into() }).or_default() += ns;
    }
}

/// Names of the functions at places.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// `None` for code without a symbol.
    known: HashMap<(Contents, u64), Option<String>>,
    /// Files with places whose names are not searched yet.
    new: HashMap<Contents, (File, HashSet<u64>)>,
    searched: Option<Instant>,
}

/// Executable mappings of processes at one time.
pub(super) type Maps = HashMap<i32, Vec<Mapping>>;

impl Names {
    /// Returns the place of an address of a process. Reads the mappings of the process if `maps`
    /// does not contain them.
    pub(super) fn place(&mut self, pid: i32, address: u64, maps: &mut Maps) -> Place {
        let maps = maps.entry(pid).or_insert_with(|| mapping::executable(pid).collect());
        let mapping = maps.iter().find(|mapping| mapping.addresses.contains(&address));
        match mapping.map(|m| (m, m.has_file().then(|| m.offset_of(address)).flatten())) {
            None => Place::Unknown,
            Some((mapping, None)) if mapping.is_vdso() => Place::Vdso,
            Some((_, None)) => Place::Anonymous,
            Some((mapping, Some(offset))) => {
                let contents = mapping.open(pid).and_then(|file| self.contents(file, offset));
                Place::File { path: mapping.path(), offset, contents }
            }
        }
    }

    /// Returns the identity of a file. Arranges a search for the name of the function at an offset.
    fn contents(&mut self, file: File, offset: u64) -> Option<Contents> {
        let contents = Contents::of(&file)?;
        let is_known = self.known.contains_key(&(contents, offset));
        let has_room = self.new.len() < FILES_MAX || self.new.contains_key(&contents);
        if !is_known && has_room {
            self.new.entry(contents).or_insert_with(|| (file, HashSet::new())).1.insert(offset);
        }
        Some(contents)
    }

    /// Searches for the names of new places, unless the last search was less than a second ago.
    pub(crate) fn search_if_due(&mut self, now: Instant) {
        let since = self.searched.map(|last| now.saturating_duration_since(last));
        if !self.new.is_empty() && since.is_none_or(|since| since >= SEARCH_PERIOD) {
            self.searched = Some(now);
            self.search();
        }
    }

    /// Searches for the names of new places, and closes the files.
    pub(crate) fn search(&mut self) {
        if self.known.len() >= NAMES_MAX {
            self.known.clear();
        }
        for (contents, (file, offsets)) in self.new.drain() {
            let mut names = symbol::names(&file, &offsets);
            let name = |offset| ((contents, offset), names.remove(&offset));
            self.known.extend(offsets.into_iter().map(name));
        }
    }

    /// Returns the functions in which threads spun, the longest time first.
    pub(crate) fn functions(&self, times: &SpinTimes) -> Vec<SpinFunction> {
        SpinFunction::ranking(times.0.iter().map(|(place, &time_ns)| {
            let function = match &**place {
                Place::Vdso => Function::Vdso,
                Place::Anonymous => Function::Anonymous,
                Place::Unknown => Function::Unknown,
                &Place::File { ref path, offset, contents } => {
                    let file = path.clone();
                    match contents.and_then(|c| self.known.get(&(c, offset))?.clone()) {
                        Some(name) => Function::Named { name, file },
                        None => Function::Unnamed { file, offset },
                    }
                }
            };
            SpinFunction { function, time_ns }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::barrier::{Caller, library};
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    use std::fs;
    use std::path::Path;

    fn named(name: &str, file: &str) -> Function {
        Function::Named { name: name.into(), file: file.into() }
    }

    fn unnamed(file: &str, offset: u64) -> Function {
        Function::Unnamed { file: file.into(), offset }
    }

    /// The function at an address of a process.
    fn function_at(pid: i32, address: u64) -> Function {
        let mut names = Names::default();
        let mut times = SpinTimes::default();
        times.add(names.place(pid, address, &mut Maps::new()).into(), 1.0);
        names.search();
        assert!(names.new.is_empty(), "the files are closed");
        names.functions(&times).remove(0).function
    }

    /// The address of a function of a library that a process has loaded.
    fn address_of(pid: i32, function: &str, library: &Path) -> u64 {
        let (file, path) = (File::open(library).unwrap(), library.to_str().unwrap());
        let names = symbol::names(&file, &(0..file.metadata().unwrap().len()).collect());
        let offsets = names.into_iter().filter(|(_, name)| name == function);
        let offset = offsets.map(|(offset, _)| offset).min().expect("the function has a symbol");
        let mut mappings = mapping::executable(pid).filter(|m| m.path() == path);
        let mapping = mappings.next().expect("the process has loaded the library");
        mapping.addresses.start + offset - mapping.offset_of(mapping.addresses.start).unwrap()
    }

    #[test]
    fn function_of_a_running_process_is_found() {
        // Release builds merge functions with equal code.
        fn this_function() -> u32 {
            std::hint::black_box(0x7415_f00d)
        }
        let me = std::process::id() as i32;
        let found = function_at(me, this_function as fn() -> u32 as *const () as u64);
        let exe = fs::read_link("/proc/self/exe").unwrap();
        let Function::Named { name, file } = &found else { panic!("{found:?}") };
        assert!(name.ends_with("function_of_a_running_process_is_found::this_function"), "{name}");
        assert_eq!(Path::new(file), exe);
    }

    #[test]
    fn code_without_a_file_or_a_mapping_has_no_name() {
        let me = std::process::id() as i32;
        let access = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 1, access, MapFlags::PRIVATE) };
        assert_eq!(function_at(me, page.unwrap().addr() as u64), Function::Anonymous);
        let vdso = mapping::executable(me).find(Mapping::is_vdso).expect("the kernel has a vDSO");
        assert_eq!(function_at(me, vdso.addresses.start), Function::Vdso);
        for (pid, address) in [(me, 0), (me, u64::MAX), (i32::MAX, 0x40_0000)] {
            assert_eq!(function_at(pid, address), Function::Unknown);
        }
    }

    #[test]
    fn replaced_file_never_gives_the_name_of_its_successor() {
        let folder = tempfile::tempdir().unwrap();
        let Some(path) = library(folder.path(), &[]) else { return };
        let caller = Caller::start(folder.path(), &path, "barrier_wait").unwrap();
        let address = address_of(caller.pid(), "await_phase", &path);
        let file = path.to_str().unwrap();
        assert_eq!(function_at(caller.pid(), address), named("await_phase", file));
        // Every function has another name.
        let other = fs::read(&path).unwrap();
        let at = other.windows(12).position(|bytes| bytes == b"await_phase\0").unwrap();
        let other = [&other[..at], b"other_phase", &other[at + 11..]].concat();
        for replace in [true, false] {
            let successor = folder.path().join("successor");
            fs::write(&successor, &other).unwrap();
            match replace {
                true => fs::rename(&successor, &path).unwrap(),
                false => fs::remove_file(&path).unwrap(),
            }
            match function_at(caller.pid(), address) {
                // A privileged process opens the mapped file itself.
                Function::Named { name, .. } => assert_eq!(name, "await_phase"),
                Function::Unnamed { file: found, .. } => assert_eq!(found, file),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn names_are_searched_once_a_second() {
        fn first() {}
        let (me, mut names, now) = (std::process::id() as i32, Names::default(), Instant::now());
        let add = |names: &mut Names, offset: u64| {
            let place = names.place(me, first as *const () as u64 + offset, &mut Maps::new());
            assert!(matches!(place, Place::File { contents: Some(_), .. }));
        };
        let early = now + SEARCH_PERIOD / 2;
        for (offset, at, searched) in
            [(0, now, true), (1, early, false), (2, now + SEARCH_PERIOD, true)]
        {
            add(&mut names, offset);
            names.search_if_due(at);
            assert_eq!(names.new.is_empty(), searched, "{offset}");
        }
        assert_eq!(names.known.len(), 3);
        // A known place opens no file.
        add(&mut names, 0);
        assert!(names.new.is_empty());
    }

    #[test]
    fn functions_are_ordered_by_their_times_and_places_of_a_loop_are_one() {
        let time =
            |function: &Function, time_ns| SpinFunction { function: function.clone(), time_ns };
        let (a, b, far) = (named("a", "/x"), unnamed("/y", 0x1000), unnamed("/y", 0x5000));
        let ranking = SpinFunction::ranking([
            time(&a, 2.0),
            time(&unnamed("/y", 0x1010), 3.0),
            time(&b, 4.0),
            time(&named("a", "/z"), 0.5),
            time(&a, 4.0),
            time(&far, 1.0),
        ]);
        let expected = [(&b, 7.0), (&a, 6.0), (&far, 1.0), (&named("a", "/z"), 0.5)];
        assert_eq!(ranking, expected.map(|(function, ns)| time(function, ns)));
    }

    #[test]
    fn times_at_too_many_places_stay_complete() {
        let mut times = SpinTimes::default();
        let place = |offset| Place::File { path: "/x".into(), offset, contents: None }.into();
        (0..2 * PLACES_MAX as u64).for_each(|offset| times.add(place(offset * 1000), 1.0));
        assert_eq!(times.0.len(), PLACES_MAX + 1);
        let first = &Names::default().functions(&times)[0];
        assert_eq!((&first.function, first.time_ns), (&Function::Unknown, PLACES_MAX as f64));
    }

    #[test]
    fn functions_are_described_in_text_and_in_json() {
        for (function, text, short, json) in [
            (
                named("f", "/lib/libc.so.6"),
                "f in libc.so.6",
                "f",
                r#"{"function":"f","file":"/lib/libc.so.6","offset":null}"#,
            ),
            (
                unnamed("/bin/a", 0x1234),
                "unknown function at a+0x1234",
                "a+0x1234",
                r#"{"function":null,"file":"/bin/a","offset":4660}"#,
            ),
            (
                Function::Vdso,
                "the vDSO",
                "vDSO",
                r#"{"function":null,"file":"[vdso]","offset":null}"#,
            ),
            (
                Function::Anonymous,
                "unknown function in anonymous memory",
                "anonymous memory",
                r#"{"function":null,"file":null,"offset":null}"#,
            ),
            (
                Function::Unknown,
                "unknown function",
                "unknown",
                r#"{"function":null,"file":null,"offset":null}"#,
            ),
        ] {
            assert_eq!((&*function.to_string(), &*function.short()), (text, short));
            assert_eq!(serde_json::to_string(&function).unwrap(), json);
        }
    }
}
