//! Names of functions from the symbol tables of ELF files.
//!
//! A file may be damaged, or crafted to mislead the reader: `object` checks every offset, and the
//! constants here bound memory and time. No file causes more than a missing name.

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use object::elf::{
    FileHeader64, PF_X, PT_LOAD, ProgramHeader64, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC,
    Sym64,
};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{LittleEndian, ReadCache, ReadRef, StringTable};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::fs::File;
use std::ops::Range;

/// Size of the largest table that is read: a symbol table of this size has 2.8 million symbols.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// Number of symbols with the same size among which the name of a function is chosen.
const ALIASES_MAX: usize = 8;

/// Length of a name, in characters. Names of C++ and Rust can be much longer.
const NAME_CHARS_MAX: usize = 200;

const ENDIAN: LittleEndian = LittleEndian;

/// Returns the names of the functions that contain the code at these offsets of an ELF file for
/// x86-64. There is no name if no function contains the offset, or if the file cannot be read.
///
/// The names come from `.symtab`, or from `.dynsym` in a stripped file. `.dynsym` lacks functions
/// that are local to the file. The size of a symbol bounds its function, so that the code of a
/// local function does not get the name of the symbol before it.
pub(super) fn names(file: &File, offsets: &HashSet<u64>) -> HashMap<u64, String> {
    find(file, offsets).unwrap_or_default()
}

fn find(file: &File, offsets: &HashSet<u64>) -> object::read::Result<HashMap<u64, String>> {
    let cache = ReadCache::new(file);
    let data = Bounded(&cache);
    let header = FileHeader64::<LittleEndian>::parse(data)?;
    let segments = header.program_headers(ENDIAN, data)?;
    let sections = header.sections(ENDIAN, data)?;
    let mut symbols = sections.symbols(ENDIAN, data, SHT_SYMTAB)?;
    if symbols.is_empty() {
        symbols = sections.symbols(ENDIAN, data, SHT_DYNSYM)?;
    }
    let mut found: Vec<Found> =
        offsets.iter().filter_map(|&offset| Found::new(segments, offset)).collect();
    found.sort_by_key(|found| found.address);
    for symbol in symbols.iter().filter(|symbol| is_function(symbol)) {
        let from = symbol.st_value(ENDIAN);
        let Some(until) = from.checked_add(symbol.st_size(ENDIAN)) else { continue };
        let first = found.partition_point(|found| found.address < from);
        let inside = found[first..].iter_mut().take_while(|found| found.address < until);
        inside.for_each(|found| found.add(symbol));
    }
    let name = |found: Found| Some((found.offset, demangled(&found.name(symbols.strings())?)));
    Ok(found.into_iter().filter_map(name).collect())
}

fn is_function(symbol: &Sym64<LittleEndian>) -> bool {
    !symbol.is_undefined(ENDIAN) && matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC)
}

/// The smallest function that contains the code at an offset.
struct Found<'data> {
    offset: u64,
    address: u64,
    /// One symbol, or several for the names of the function.
    symbols: Vec<&'data Sym64<LittleEndian>>,
}

impl<'data> Found<'data> {
    /// No function yet. `None` if the file has no code at the offset.
    fn new(segments: &[ProgramHeader64<LittleEndian>], offset: u64) -> Option<Self> {
        let address = segments.iter().find_map(|segment| {
            let (start, bytes) = segment.file_range(ENDIAN);
            let is_code = segment.p_type(ENDIAN) == PT_LOAD && segment.p_flags(ENDIAN) & PF_X != 0;
            let inside = offset.checked_sub(start).filter(|&inside| is_code && inside < bytes)?;
            segment.p_vaddr(ENDIAN).checked_add(inside)
        });
        Some(Found { offset, address: address?, symbols: Vec::new() })
    }

    fn add(&mut self, symbol: &'data Sym64<LittleEndian>) {
        let bytes = |symbol: &Sym64<LittleEndian>| symbol.st_size(ENDIAN);
        match self.symbols.first().map_or(Ordering::Less, |s| bytes(symbol).cmp(&bytes(s))) {
            Ordering::Less => self.symbols = vec![symbol],
            Ordering::Equal if self.symbols.len() < ALIASES_MAX => self.symbols.push(symbol),
            _ => {}
        }
    }

    /// Returns the most public name: `puts`, not `_IO_puts`; `wait`, not `wait.localalias`.
    fn name<'s>(&self, strings: StringTable<'s, Bounded<'s>>) -> Option<String> {
        let name = |symbol: &&Sym64<LittleEndian>| {
            let name = symbol.name(ENDIAN, strings).ok()?;
            // A version may follow: `pthread_spin_lock@@GLIBC_2.34`.
            let name = name.split(|&byte| byte == b'@').next()?;
            (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
        };
        let names = self.symbols.iter().filter_map(name);
        names.min_by_key(|name| {
            let underscores = name.len() - name.trim_start_matches('_').len();
            (underscores, name.len(), name.clone())
        })
    }
}

/// A file of which no more than [`TABLE_BYTES_MAX`] is read at once. A damaged file may state any
/// size, and a sparse file may have that size.
#[derive(Clone, Copy)]
struct Bounded<'data>(&'data ReadCache<&'data File>);

impl<'data> ReadRef<'data> for Bounded<'data> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, bytes: u64) -> Result<&'data [u8], ()> {
        if bytes <= TABLE_BYTES_MAX { self.0.read_bytes_at(offset, bytes) } else { Err(()) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

/// Returns the name in the source of a function of Rust or C++, without its parameters, or the
/// symbol itself.
fn demangled(symbol: &str) -> String {
    let mut text = Text { text: String::new(), chars_left: NAME_CHARS_MAX };
    // Without the prefix, a demangler may take the name of a C function for a type: `f` is `float`.
    let mangled =
        Some(symbol).filter(|symbol| symbol.starts_with("_R") || symbol.starts_with("_Z"));
    let rust = mangled.and_then(|symbol| rustc_demangle::try_demangle(symbol).ok());
    let cpp = mangled.and_then(|symbol| BorrowedSymbol::new(symbol.as_bytes()).ok());
    let written = match (rust, cpp) {
        (Some(name), _) => write!(text, "{name:#}"),
        (None, Some(name)) => {
            let options = DemangleOptions::new().no_params().no_return_type();
            name.structured_demangle(&mut text, &options)
        }
        (None, None) => Err(fmt::Error),
    };
    // An error is the end of a full text, or the symbol has no name.
    if written.is_err() && text.chars_left > 0 {
        text = Text { text: String::new(), chars_left: NAME_CHARS_MAX };
        let _ = text.write_str(symbol);
    }
    text.text
}

/// A text that is cut after a number of characters: a short symbol may stand for a name of
/// gigabytes.
struct Text {
    text: String,
    chars_left: usize,
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for character in more.chars() {
            if self.chars_left == 0 {
                return Err(fmt::Error);
            }
            self.chars_left -= 1;
            self.text.push(if self.chars_left == 0 { '…' } else { character });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::barrier;
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    /// The names at all offsets of a file.
    fn all_names(path: &Path) -> HashMap<u64, String> {
        let file = File::open(path).unwrap();
        names(&file, &(0..file.metadata().unwrap().len()).collect())
    }

    #[test]
    fn local_function_of_a_stripped_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let libraries = ["-g", "-s"].map(|strip| barrier::library(folder.path(), &["-O2", strip]));
        let [Some(whole), Some(stripped)] = libraries else { return };
        let (whole, stripped) = (all_names(&whole), all_names(&stripped));
        let has = |name: &str| whole.values().any(|other| other == name);
        assert!(has("await_phase") && has("barrier_wait") && has("barrier_begin"), "{whole:?}");
        for (offset, name) in &whole {
            let expected = Some(name).filter(|name| name.starts_with("barrier_"));
            assert_eq!(stripped.get(offset), expected, "{offset:#x} is in {name}");
        }
        assert!(stripped.keys().all(|offset| whole.contains_key(offset)), "{stripped:?}");
    }

    #[test]
    fn most_public_name_of_a_function_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let source = "void f(void) { for (;;) {} }
            void _f(void) __attribute__((alias(\"f\"), weak));
            void f_with_a_long_name(void) __attribute__((alias(\"f\")));";
        let Some(library) = barrier::compiled(folder.path(), source, &[]) else { return };
        let names = all_names(&library);
        assert!(names.values().any(|name| name == "f"), "{names:?}");
        assert!(!names.values().any(|name| name.contains("f_with") || name == "_f"), "{names:?}");
    }

    #[test]
    fn names_of_rust_and_cpp_are_demangled_and_bounded() {
        for (symbol, name) in [
            ("main", "main"),
            ("f", "f"),
            ("await_phase.constprop.0", "await_phase.constprop.0"),
            ("_ZN4core4hint9spin_loop17h0123456789abcdefE", "core::hint::spin_loop"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_ZN5tbase7Barrier4waitEv", "tbase::Barrier::wait"),
            ("_ZN3tbb8internal4spinIiEEvT_", "tbb::internal::spin<int>"),
            ("_ZNotMangled", "_ZNotMangled"),
            ("", ""),
        ] {
            assert_eq!(demangled(symbol), name);
        }
        // Each argument stands for two of the argument before it.
        let doubled = |n: u32| format!("1AIS{}_S{}_E", base_36(n), base_36(n));
        let nested: String = (0..30).map(doubled).collect();
        let long = [format!("_Z1fI1AIiE{nested}EvT_"), "x".repeat(5000), "\u{1b}é".repeat(900)];
        for symbol in long {
            assert!(demangled(&symbol).chars().count() <= NAME_CHARS_MAX, "{symbol}");
        }
    }

    fn base_36(n: u32) -> String {
        char::from_digit(n % 36, 36).unwrap().to_ascii_uppercase().to_string()
    }

    #[test]
    fn tables_of_a_damaged_file_are_read_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = barrier::library(folder.path(), &[]) else { return };
        let bytes = fs::read(&library).unwrap();
        let at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        // struct Elf64_Shdr: u32 name, type; u64 flags, addr, offset, size, ...
        let is_table = |section: &usize| matches!(bytes[section + 4], 2 | 11);
        let tables: Vec<usize> = (at(0x28)..bytes.len()).step_by(64).filter(is_table).collect();
        assert_eq!(tables.len(), 2, "a table of symbols and one of dynamic symbols");
        for size in [1 << 40, u64::MAX, 0] {
            let mut damaged = bytes.clone();
            for table in &tables {
                damaged[table + 32..table + 40].copy_from_slice(&size.to_le_bytes());
            }
            let path = folder.path().join("damaged");
            fs::write(&path, &damaged).unwrap();
            // A sparse file that really has this size.
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.set_len(2 << 40).unwrap();
            assert!(names(&file, &(0..bytes.len() as u64).collect()).is_empty(), "{size:#x}");
        }
    }

    #[test]
    fn damaged_files_have_names_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = barrier::library(folder.path(), &["-Wl,-z,max-page-size=4096"]) else {
            return;
        };
        let bytes = fs::read(&library).unwrap();
        let path = folder.path().join("damaged");
        let mut file = fs::File::options();
        let file = file.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let offsets: HashSet<u64> = (0..bytes.len() as u64).step_by(7).collect();
        let any_part = || 0..bytes.len();
        proptest!(|(
            changes in proptest::collection::vec((any_part(), any::<[u8; 8]>()), 0..8),
            header in proptest::option::of((0usize..64, any::<u8>())),
            length in any_part(),
            cut in any::<bool>(),
        )| {
            let mut damaged = bytes.clone();
            for (at, new) in changes {
                let end = (at + 8).min(damaged.len());
                damaged[at..end].copy_from_slice(&new[..end - at]);
            }
            header.into_iter().for_each(|(at, byte)| damaged[at] = byte);
            damaged.truncate(if cut { length } else { damaged.len() });
            file.set_len(0).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &damaged, 0).unwrap();
            prop_assert!(names(&file, &offsets).keys().all(|offset| offsets.contains(offset)));
        });
    }
}
