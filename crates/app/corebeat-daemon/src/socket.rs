//! Sockets of the daemon: places in the file system that one daemon has at a time.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How often a lock is tried whose file was taken away meanwhile, by a daemon that just ended.
const LOCK_TRIES_MAX: u32 = 16;
/// So many connections wait to be taken in.
const BACKLOG: i32 = 64;

/// Who may connect, and get as far as the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The user who runs the daemon, and root.
    User,
    /// Everybody on this host.
    Host,
}

/// A socket that is listened on. It is taken away when this is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    socket: OwnedFd,
    path: PathBuf,
    _lock: Lock,
}

/// Held by the daemon that has the place. A socket without it was left by one that was killed. Its file is taken away when this
/// is dropped.
#[derive(Debug)]
struct Lock {
    /// Closed after the file is gone: who holds the lock of a file that is still there is the only one.
    _file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    /// # Errors
    /// Of the kind `AddrInUse` where somebody has it.
    fn of(socket: &Path) -> io::Result<Lock> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..LOCK_TRIES_MAX {
            let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            }
            let own = fstat(&file)?;
            if stat(&path).is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)) {
                return Ok(Lock { _file: file, path: path.into() });
            }
        }
        Err(taken())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Door {
    /// Listens at this path.
    ///
    /// # Errors
    /// Of the kind `AddrInUse` where somebody listens there already.
    pub(crate) fn open(path: &Path, scope: Scope) -> io::Result<Door> {
        let lock = Lock::of(path)?;
        clear(path)?;
        let socket = socket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        let mode = match scope {
            Scope::User => 0o600,
            Scope::Host => 0o666,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(Door { socket, path: path.into(), _lock: lock })
    }

    /// Takes in one who waits. `None` if nobody does.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            // Who has gone meanwhile is nobody.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// Makes the directory of a socket, if it is missing. The one that it lies in is somebody else's to make.
pub(crate) fn make_directory(path: &Path, scope: Scope) -> io::Result<()> {
    let mode = match scope {
        Scope::User => 0o700,
        Scope::Host => 0o755,
    };
    match path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) if !directory.is_dir() => {
            fs::DirBuilder::new().mode(mode).create(directory)?;
            // Whatever the umask is.
            fs::set_permissions(directory, fs::Permissions::from_mode(mode))
        }
        _ => Ok(()),
    }
}

/// Takes away a socket that was left behind. What somebody listens on stays, and so does anything else.
fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket is there"));
        }
        Err(_) => return Ok(()),
    }
    match connect(&socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // Even if it takes nobody in just now.
        Ok(()) | Err(Errno::AGAIN) => Err(taken()),
        Err(e) => Err(e.into()),
    }
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there already")
}

/// A socket that does not block.
fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn door_is_one_daemons_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let door = Door::open(&path, Scope::User).unwrap();
        assert_eq!(Door::open(&path, Scope::User).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(door.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(door.accept().unwrap().is_some());
        drop(door);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn lock_whose_file_was_taken_away_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = Lock::of(&path).unwrap();
        // As one does that has opened the file before the first took it away.
        let late = fs::File::open(&first.path).unwrap();
        drop(first);
        flock(&late, FlockOperation::NonBlockingLockExclusive).unwrap();
        let second = Lock::of(&path).unwrap();
        assert_eq!(Lock::of(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn door_of_a_daemon_that_was_killed_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _door = Door::open(&path, Scope::Host).unwrap();
        UnixStream::connect(&path).unwrap();
        // But nothing else is.
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert_eq!(Door::open(&file, Scope::Host).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        assert!(!dir.path().join("file.lock").exists());
    }

    #[test]
    fn door_that_another_program_listens_on_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(Door::open(&path, Scope::User).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        assert!(!dir.path().join("socket.lock").exists());
        drop(other);
        Door::open(&path, Scope::User).unwrap();
    }

    #[test]
    fn directory_of_a_socket_is_made_and_none_above_it() {
        let dir = tempfile::tempdir().unwrap();
        for (scope, name, mode) in [(Scope::User, "own", 0o700), (Scope::Host, "all", 0o755)] {
            let directory = dir.path().join(name);
            make_directory(&directory.join("socket"), scope).unwrap();
            make_directory(&directory.join("socket"), scope).unwrap();
            assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, mode);
        }
        assert!(make_directory(&dir.path().join("none/deep/socket"), Scope::User).is_err());
        assert!(!dir.path().join("none").exists());
        make_directory(Path::new("socket"), Scope::User).unwrap();
    }
}
