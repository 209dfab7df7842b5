//! The daemon's socket: a place in the file system that one daemon has at a time.

use crate::Error;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// So many connections wait to be taken in.
const BACKLOG: i32 = 64;

/// Who may connect.
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
    /// Held by the daemon that has the place. A socket without it was left by one that was killed.
    _lock: OwnedFd,
}

impl Door {
    /// Listens at this path. The directory is made if need be.
    pub(crate) fn open(path: &Path, scope: Scope) -> Result<Door, Error> {
        let failed = |e: io::Error| Error::Listen { path: path.into(), source: e };
        let (directory, mode) = match scope {
            Scope::User => (0o700, 0o600),
            Scope::Host => (0o755, 0o666),
        };
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(directory).create(parent).map_err(failed)?;
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&beside, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(Error::Running { path: path.into() }),
            Err(e) => return Err(failed(e.into())),
        }
        // One that was left behind. Anything else is not ours to remove, and stands in the way.
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            fs::remove_file(path).map_err(failed)?;
        }
        let make = || -> Result<OwnedFd, Errno> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = make().map_err(|e| failed(e.into()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
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

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The lock's file stays: a daemon that is just starting may hold it.
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
        let path = dir.path().join("deep/socket");
        let door = Door::open(&path, Scope::User).unwrap();
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(Door::open(&path, Scope::User), Err(Error::Running { .. })));
        assert!(door.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(door.accept().unwrap().is_some());
        drop(door);
        assert!(!path.exists());
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
        assert!(matches!(Door::open(&file, Scope::Host), Err(Error::Listen { .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
