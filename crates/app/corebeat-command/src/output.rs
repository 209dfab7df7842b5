//! Files that are written at the end of a long run.

use crate::{Cleanup, Failure};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Number of links that the kernel follows in a path.
const LINKS_MAX: usize = 40;
/// Number of names that are tried for a new file.
const NAMES_MAX: usize = 100;

/// A file to be written later. It is opened at once, so that a file that cannot be written is
/// reported before the run and not after it. Its old content stays until [`write`](Self::write); if
/// the run fails, no new file remains.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    /// The file did not exist before, and its content is not yet written.
    is_new: bool,
    /// Removes the new file if a signal ends the process.
    cleanup: Option<Cleanup>,
}

impl Output {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// A usage failure if the file cannot be created or written.
    pub fn create(path: &Path) -> Result<Output, Failure> {
        let new = new_file(path);
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| Failure::usage(cannot_write(path, &e)))?;
        let is_new = new.is_some();
        Ok(Output { path: new.unwrap_or(path.to_owned()), file, is_new, cleanup: None })
    }

    /// Opens or creates the file in a command that handles no signals itself: if a signal ends the
    /// process, no new file remains either.
    ///
    /// # Errors
    /// As [`Output::create`]; an internal failure if signal handlers cannot be installed.
    pub fn create_with_cleanup(path: &Path) -> Result<Output, Failure> {
        let cleanup =
            new_file(path).map(|path| Cleanup::on_signal(move || drop(std::fs::remove_file(path))));
        let cleanup = cleanup.transpose().map_err(Failure::internal)?;
        let mut output = Output::create(path)?;
        output.cleanup = cleanup;
        Ok(output)
    }

    /// Replaces the content of the file. A regular file is replaced by a new one beside it, so that
    /// its old content stays if the new one cannot be written. It is written in place if a new file
    /// could not take its place: if it is open as a standard stream, has several names, or is in a
    /// folder that the user must not write.
    ///
    /// # Errors
    /// An internal failure if the file cannot be written any more, such as on a full disk.
    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        let written = match Replaced::of(&self).map(|old| old.by(text)) {
            Some(Ok(true)) => Ok(()),
            Some(Err(e)) => Err(e),
            None | Some(Ok(false)) => self.write_in_place(text),
        };
        if written.is_ok() {
            (self.is_new, self.cleanup) = (false, None);
        }
        written.map_err(|e| Failure::internal(cannot_write(&self.path, &e)))
    }

    fn write_in_place(&mut self, text: &str) -> io::Result<()> {
        if self.file.metadata().is_ok_and(|m| m.is_file()) {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A regular file that a new one can replace.
struct Replaced {
    /// Without links.
    path: PathBuf,
    old: Metadata,
}

impl Replaced {
    /// The file of an output; `None` if it must be written in place.
    fn of(output: &Output) -> Option<Replaced> {
        let old = output.file.metadata().ok().filter(|old| old.is_file() && old.nlink() == 1)?;
        if output.is_new || is_open_file(&output.path) {
            return None;
        }
        let is_old = |other: Metadata| (other.dev(), other.ino()) == (old.dev(), old.ino());
        let is_stream = [
            rustix::fs::fstat(io::stdin()),
            rustix::fs::fstat(io::stdout()),
            rustix::fs::fstat(io::stderr()),
        ]
        .into_iter()
        .flatten()
        .any(|stream| (stream.st_dev, stream.st_ino) == (old.dev(), old.ino()));
        let path = output.path.canonicalize().ok()?;
        let can_be = !is_stream && path.metadata().is_ok_and(is_old);
        can_be.then_some(Replaced { path, old })
    }

    /// Writes a new file beside this one, and gives it the name of this one. Returns false if the
    /// user must not do so. After a failure, this file is as before, and there is no new one.
    fn by(&self, text: &str) -> io::Result<bool> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let Some((beside, file)) = new_beside(folder)? else { return Ok(false) };
        let replaced = self.replace(&beside, file, text);
        if !matches!(replaced, Ok(true)) {
            // The failure of the write is the one to report.
            let _ = std::fs::remove_file(beside);
        }
        replaced
    }

    fn replace(&self, beside: &Path, mut file: File, text: &str) -> io::Result<bool> {
        let (uid, gid) = (self.old.uid(), self.old.gid());
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (uid, gid)
            && std::os::unix::fs::fchown(&file, Some(uid), Some(gid)).is_err()
        {
            return Ok(false);
        }
        file.set_permissions(self.old.permissions())?;
        file.write_all(text.as_bytes())?;
        // The old content is lost with the name.
        file.sync_all()?;
        // Fails for a file that is a mount, or of another user in a folder such as /tmp.
        Ok(std::fs::rename(beside, &self.path).is_ok())
    }
}

/// Creates a file of this user alone; `None` if the user must not write the folder.
fn new_beside(folder: &Path) -> io::Result<Option<(PathBuf, File)>> {
    let process = std::process::id();
    for number in 0..NAMES_MAX {
        let path = folder.join(format!(".corebeat-{process}-{number}.new"));
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok(Some((path, file))),
            Err(e) => match e.kind() {
                ErrorKind::AlreadyExists => {}
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => return Ok(None),
                _ => return Err(e),
            },
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Whether a path names an open file of a process, such as `/dev/stdout` or `/dev/fd/3`: the
/// process would keep the old file.
pub(crate) fn is_open_file(path: &Path) -> bool {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        if folder.is_ok_and(|folder| folder.starts_with("/proc")) {
            return true;
        }
        let Ok(link) = path.read_link() else { break };
        path = path.parent().unwrap_or(Path::new("")).join(link);
    }
    false
}

/// Requires that the paths name different files, so that no output replaces an input or another
/// output. Call this function before an output is opened. Devices, pipes and folders may be named
/// repeatedly.
///
/// # Errors
/// A usage failure if two paths name one file.
pub fn require_distinct<'a, P: AsRef<Path> + ?Sized + 'a>(
    paths: impl IntoIterator<Item = &'a P>,
) -> Result<(), Failure> {
    let mut known: Vec<(_, &Path)> = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let Some(identity) = identity(path) else { continue };
        if let Some((_, other)) = known.iter().find(|(other, _)| *other == identity) {
            let what = match *other == path {
                true => format!("{} is named twice", path.display()),
                false => format!("{} and {} are one file", other.display(), path.display()),
            };
            let line = format!("{what}; name a different file for each purpose");
            return Err(Failure::usage(line));
        }
        known.push((identity, path));
    }
    Ok(())
}

/// Requires that an output replaces neither a program to run, nor a file that an argument of the
/// program names, such as the script of a shell, nor the file of a standard stream, which the
/// program inherits. Call this function before the output is opened. A program is a path, or a name
/// to search in `PATH`; its arguments follow it.
///
/// # Errors
/// A usage failure if the output is one of these files.
pub fn require_distinct_from_programs<'a>(
    programs: impl IntoIterator<Item = &'a [OsString]>,
    output: &Path,
) -> Result<(), Failure> {
    // Each path alone: two programs may be one file.
    for stream in ["/dev/stdin", "/dev/stdout", "/dev/stderr"] {
        require_distinct([Path::new(stream), output])?;
    }
    programs.into_iter().filter_map(|words| words.split_first()).try_for_each(
        |(program, arguments)| {
            let files = arguments.iter().map(PathBuf::from).filter(|file| file.is_file());
            let mut files = executable(program).into_iter().chain(files);
            files.try_for_each(|file| require_distinct([file.as_path(), output]))
        },
    )
}

/// The file of a program, if there is one.
fn executable(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Device and inode of an existing file, or of the folder of a new file, with its name.
fn identity(path: &Path) -> Option<(u64, u64, Option<OsString>)> {
    if let Ok(file) = path.metadata() {
        return file.is_file().then(|| (file.dev(), file.ino(), None));
    }
    let path = new_file(path)?;
    let name = path.file_name()?.to_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).metadata().ok()?;
    Some((folder.dev(), folder.ino(), Some(name)))
}

/// The file that opening a path creates; `None` if the file exists. If the path is a link to a
/// missing file, opening it creates that file.
fn new_file(path: &Path) -> Option<PathBuf> {
    let mut new = (!path.exists()).then(|| path.to_owned())?;
    for _ in 0..LINKS_MAX {
        let Ok(link) = new.read_link() else { break };
        new = new.parent().unwrap_or(Path::new("")).join(link);
    }
    Some(new)
}

fn cannot_write(path: &Path, why: &dyn Display) -> String {
    format!("cannot write {}: {why}; name another file", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_not_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "content").unwrap();
        drop(Output::create(&new).unwrap());
        drop(Output::create(&old).unwrap());
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "content");
        Output::create(&old).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "new");
    }

    #[test]
    fn replaced_file_keeps_its_permissions_and_the_links_to_it() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let [old, link, name] = ["old", "link", "name"].map(|n| folder.path().join(n));
        std::fs::write(&old, "long content").unwrap();
        std::fs::set_permissions(&old, PermissionsExt::from_mode(0o640)).unwrap();
        symlink("old", &link).unwrap();
        let inode = || old.metadata().unwrap().ino();
        let before = (inode(), File::open(&old).unwrap());
        Output::create(&link).unwrap().write("new").unwrap();
        assert!(link.is_symlink() && inode() != before.0);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "new");
        assert_eq!(io::read_to_string(&before.1).unwrap(), "long content");
        assert_eq!(old.metadata().unwrap().mode() & 0o7777, 0o640);
        // Each name of a file, and each process that has opened it, gets the new content.
        std::fs::hard_link(&old, &name).unwrap();
        Output::create(&old).unwrap().write("2").unwrap();
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "2");
        std::fs::remove_file(&name).unwrap();
        let open = File::open(&old).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        Output::create(Path::new(&path)).unwrap().write("3").unwrap();
        assert_eq!(io::read_to_string(&open).unwrap(), "3");
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn paths_of_one_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        std::fs::write(&one, "").unwrap();
        std::fs::hard_link(&one, &other).unwrap();
        assert!(require_distinct([&one]).is_ok());
        assert!(require_distinct([&one, &other]).is_err());
        let (new, same) = (folder.path().join("new"), folder.path().join("./new"));
        assert!(require_distinct([&one, &new]).is_ok());
        assert!(require_distinct([&new, &same]).is_err());
        assert!(require_distinct(["/dev/null", "/dev/null"]).is_ok());
    }

    #[test]
    fn link_to_a_missing_file_is_that_file() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let [new, link, far, other] =
            ["new", "link", "far", "other"].map(|n| folder.path().join(n));
        symlink("new", &link).unwrap();
        symlink(&link, &far).unwrap();
        symlink("none", &other).unwrap();
        assert!(require_distinct([&new, &link]).is_err());
        assert!(require_distinct([&far, &new]).is_err());
        assert!(require_distinct([&link, &other]).is_ok());
        drop(Output::create(&far).unwrap());
        assert!(!new.exists() && link.is_symlink() && far.is_symlink());
        Output::create(&far).unwrap().write("text").unwrap();
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "text");
        // A loop of links names no file.
        std::fs::remove_file(&new).unwrap();
        symlink("far", &new).unwrap();
        assert!(Output::create(&new).is_err() && new.is_symlink());
    }
}
