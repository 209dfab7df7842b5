//! Executable mappings of a process, and the files that they map.

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of mappings of a process that are read.
const MAPPINGS_MAX: usize = 1 << 12;

/// A file as the kernel identifies it in `/proc/PID/maps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

/// A part of the address space of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) addresses: Range<u64>,
    is_executable: bool,
    /// Offset of the first address in the file.
    offset: u64,
    inode: Inode,
    /// Path in the mount namespace of the process. A line break is written as `\012`, and
    /// ` (deleted)` follows the path of a deleted file.
    path: PathBuf,
}

impl Mapping {
    /// Parses a line of `/proc/PID/maps`.
    fn parse(line: &[u8]) -> Option<Mapping> {
        // 55d0c0a00000-55d0c0a21000 r-xp 00001000 fd:00 1234                    /usr/bin/name
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let (from, until) = text()?.split_once('-')?;
        let is_executable = text()?.contains('x');
        let offset = hexadecimal(text()?)?;
        let (major, minor) = text()?.split_once(':')?;
        let device = libc::makedev(hexadecimal(major)? as u32, hexadecimal(minor)? as u32);
        let number = text()?.parse().ok()?;
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        Some(Mapping {
            addresses: hexadecimal(from)?..hexadecimal(until)?,
            is_executable,
            offset,
            inode: Inode { device, number },
            path: OsStr::from_bytes(path).into(),
        })
    }

    /// Returns whether the memory maps a file.
    pub(super) fn has_file(&self) -> bool {
        self.inode.number != 0
    }

    /// Returns whether this is the vDSO, the code that the kernel maps into each process.
    pub(super) fn is_vdso(&self) -> bool {
        self.path == Path::new("[vdso]")
    }

    /// Returns the offset of an address of this mapping in the file.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.offset.checked_add(address.checked_sub(self.addresses.start)?)
    }

    /// Returns the path of the file, without the mark of a deleted file.
    pub(super) fn path(&self) -> String {
        let path = self.path.to_string_lossy();
        path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned()
    }

    /// Opens the mapped file. `None` if another file has replaced the mapped one at its path, if
    /// the process has ended, or if the file is hidden.
    pub(super) fn open(&self, pid: i32) -> Option<File> {
        let Range { start, end } = self.addresses;
        let path = self.path.strip_prefix("/").ok().filter(|_| self.has_file())?;
        let places = [
            // The mapped file itself, also if it was deleted. Requires a privilege.
            format!("/proc/{pid}/map_files/{start:x}-{end:x}").into(),
            Path::new(&format!("/proc/{pid}/root")).join(path),
            // If the root of the process cannot be read, it is most likely that of Corebeat.
            Path::new("/").join(path),
        ];
        let files = places.iter().filter_map(|place| open_plain(place).ok());
        files.into_iter().find(|file| self.is_of(file))
    }

    /// Returns whether this is a mapping of the file.
    fn is_of(&self, file: &File) -> bool {
        let inode = file.metadata().map(|m| Inode { device: m.dev(), number: m.ino() });
        // The two differ on file systems such as btrfs and overlayfs, which containers use.
        inode.is_ok_and(|inode| inode == self.inode) || inode_of(file) == Some(self.inode)
    }
}

/// Returns the executable mappings of a process; none if the process has ended or its mappings are
/// hidden.
pub(super) fn executable(pid: i32) -> impl Iterator<Item = Mapping> {
    mappings(pid).filter(|mapping| mapping.is_executable)
}

fn mappings(pid: i32) -> impl Iterator<Item = Mapping> {
    let maps = File::open(format!("/proc/{pid}/maps")).into_iter();
    let lines = maps.flat_map(|maps| BufReader::new(maps).split(b'\n').map_while(Result::ok));
    lines.take(MAPPINGS_MAX).filter_map(|line| Mapping::parse(&line))
}

/// Returns the file as the kernel identifies it in mappings.
fn inode_of(file: &File) -> Option<Inode> {
    let bytes = rustix::param::page_size();
    // Nothing may access the memory: an empty file, for example, has no page there.
    let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
    let base = base.ok()?;
    let own = std::process::id() as i32;
    let mapping = mappings(own).find(|m| m.addresses.contains(&(base.addr() as u64)));
    // SAFETY: mapped above with this length, and nothing refers to the memory.
    let _ = unsafe { rustix::mm::munmap(base, bytes) };
    Some(mapping?.inode)
}

/// Opens a plain file. A pipe or a device may have replaced the mapped file: opening a pipe may
/// block, and opening a device may have side effects.
fn open_plain(path: &Path) -> std::io::Result<File> {
    let place = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    match place.metadata()?.is_file() {
        true => File::open(format!("/proc/self/fd/{}", place.as_raw_fd())),
        false => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own_code() -> Mapping {
        let address = own_code as *const () as u64;
        executable(std::process::id() as i32).find(|m| m.addresses.contains(&address)).unwrap()
    }

    #[test]
    fn lines_of_all_kinds_of_mappings_are_parsed() {
        let line = b"7f00-7f10 r-xp 00001000 fd:0a 1234      /usr/lib/a b.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.addresses.clone(), mapping.is_executable), (0x7f00..0x7f10, true));
        assert_eq!(mapping.inode, Inode { device: libc::makedev(0xfd, 10), number: 1234 });
        assert_eq!(mapping.offset_of(0x7f02), Some(0x1002));
        assert_eq!(mapping.offset_of(0x7eff), None);
        assert_eq!((mapping.has_file(), &*mapping.path()), (true, "/usr/lib/a b.so"));
        let anonymous = Mapping::parse(b"7f00-7f10 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.has_file(), anonymous.is_executable), (false, false));
        assert!(Mapping::parse(b"7f00-7f10 r-xp").is_none());
    }

    #[test]
    fn mapped_file_is_opened_and_another_one_is_not() {
        let (me, mapping) = (std::process::id() as i32, own_code());
        let file = mapping.open(me).expect("the file of this program exists");
        assert_eq!(inode_of(&file), Some(mapping.inode));
        let other = Inode { number: mapping.inode.number + 1, ..mapping.inode };
        assert!(Mapping { inode: other, ..mapping.clone() }.open(me).is_none());
        // Device numbers of files differ from those of mappings on some file systems.
        assert!(mapping.is_of(&file));
        assert!(!mapping.is_of(&File::open("/proc/self/status").unwrap()));
    }

    proptest! {
        #[test]
        fn mappings_of_random_lines_never_panic(
            line in proptest::collection::vec(any::<u8>(), 0..64),
            text in "[0-9a-f]{0,17}-[0-9a-f]{0,17} [rwxp-]{4} [0-9a-f]{0,17} [0-9a-f:]{0,9} [0-9]* .*",
        ) {
            for line in [&line[..], text.as_bytes()] {
                if let Some(mapping) = Mapping::parse(line) {
                    let _ = (mapping.offset_of(0), mapping.offset_of(u64::MAX), mapping.path());
                }
            }
        }
    }
}
