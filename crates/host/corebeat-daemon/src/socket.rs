//! Sockets of the daemon. Each path belongs to one daemon at a time.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Largest number of attempts to lock a file that an ending daemon removes at the same time.
const LOCK_TRIES_MAX: u32 = 16;
/// Largest number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Users that may connect and access the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The user of the daemon, and root.
    User,
    /// All users of this host.
    Host,
}

/// A listening socket. Dropping this value removes its file.
#[derive(Debug)]
pub(crate) struct LockedSocket {
    socket: OwnedFd,
    path: PathBuf,
    _lock: Lock,
}

/// The folder that a daemon created for its socket. Dropping this value removes the folder if it is
/// empty.
#[derive(Debug)]
pub(crate) struct OwnFolder(PathBuf);

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The lock of the daemon that owns the path. A socket without a lock was left by a killed daemon.
/// Dropping this value removes the file.
#[derive(Debug)]
struct Lock {
    /// Closed after the removal of the file: the holder of the lock of an existing file is the only
    /// daemon.
    _file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    /// # Errors
    /// Of the kind `AddrInUse` if another daemon has the lock.
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
            if stat(&path)
                .is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino))
            {
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

impl LockedSocket {
    /// Listens at a path.
    ///
    /// # Errors
    /// Of the kind `AddrInUse` if another process listens there.
    pub(crate) fn open(path: &Path, scope: Scope) -> io::Result<LockedSocket> {
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
        Ok(LockedSocket { socket, path: path.into(), _lock: lock })
    }

    /// Accepts a waiting connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            // The client has closed the connection already.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl OwnFolder {
    /// Creates the folder of a socket. `None` if the folder exists. The parent folder must exist.
    pub(crate) fn of(socket: &Path, scope: Scope) -> io::Result<Option<OwnFolder>> {
        let mode = match scope {
            Scope::User => 0o700,
            Scope::Host => 0o755,
        };
        match socket.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            Some(directory) if !directory.is_dir() => {
                fs::DirBuilder::new().mode(mode).create(directory)?;
                let own = OwnFolder(directory.into());
                // Independent of the umask.
                fs::set_permissions(directory, fs::Permissions::from_mode(mode))?;
                Ok(Some(own))
            }
            _ => Ok(None),
        }
    }
}

/// Removes a socket that a killed daemon left. A socket with a listener, and any other file, stays.
fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is not a socket"));
        }
        Err(_) => return Ok(()),
    }
    match connect(&socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // A full queue of connections also means that there is a listener.
        Ok(()) | Err(Errno::AGAIN) => Err(taken()),
        Err(e) => Err(e.into()),
    }
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")
}

/// A socket that does not block.
fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl AsFd for LockedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for LockedSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn socket_belongs_to_one_daemon_and_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = LockedSocket::open(&path, Scope::User).unwrap();
        assert_eq!(
            LockedSocket::open(&path, Scope::User).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        assert!(listener.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn lock_whose_file_was_removed_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = Lock::of(&path).unwrap();
        // Like a daemon that opened the file before the first daemon removed it.
        let late = fs::File::open(&first.path).unwrap();
        drop(first);
        flock(&late, FlockOperation::NonBlockingLockExclusive).unwrap();
        let second = Lock::of(&path).unwrap();
        assert_eq!(Lock::of(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn socket_of_a_killed_daemon_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = LockedSocket::open(&path, Scope::Host).unwrap();
        UnixStream::connect(&path).unwrap();
        // Other files are not removed.
        let file = dir.path().join("file");
        fs::write(&file, "content").unwrap();
        assert_eq!(
            LockedSocket::open(&file, Scope::Host).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "content");
        assert!(!dir.path().join("file.lock").exists());
    }

    #[test]
    fn socket_with_another_listener_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(
            LockedSocket::open(&path, Scope::User).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        UnixStream::connect(&path).unwrap();
        assert!(!dir.path().join("socket.lock").exists());
        drop(other);
        LockedSocket::open(&path, Scope::User).unwrap();
    }

    #[test]
    fn directory_of_a_socket_is_created_without_its_parents_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        for (scope, name, mode) in [(Scope::User, "own", 0o700), (Scope::Host, "all", 0o755)] {
            let directory = dir.path().join(name);
            let own = OwnFolder::of(&directory.join("socket"), scope).unwrap();
            assert!(OwnFolder::of(&directory.join("socket"), scope).unwrap().is_none());
            assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, mode);
            assert!(own.is_some());
            drop(own);
            assert!(!directory.exists());
        }
        let own = OwnFolder::of(&dir.path().join("used/socket"), Scope::User).unwrap();
        fs::write(dir.path().join("used/other"), "content").unwrap();
        drop(own);
        assert!(dir.path().join("used/other").exists());
        assert!(OwnFolder::of(&dir.path().join("none/deep/socket"), Scope::User).is_err());
        assert!(!dir.path().join("none").exists());
        assert!(OwnFolder::of(Path::new("socket"), Scope::User).unwrap().is_none());
    }
}
