//! Messages to the service manager: ready, alive, stopping.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager (systemd), if there is one.
#[derive(Debug)]
pub(crate) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Period of keep-alive messages, in nanoseconds.
    pub(crate) alive_each_ns: Option<u64>,
}

impl Notify {
    /// Connects to the service manager that the environment names.
    pub(crate) fn of_environment() -> Notify {
        let named = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let to = named.and_then(|name| connect(name.as_bytes()).ok());
        let ours =
            env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let each_us: Option<u64> = env::var("WATCHDOG_USEC").ok().and_then(|us| us.parse().ok());
        // Twice as often as required, so that one message may be late.
        let alive_each_ns = each_us.filter(|us| ours && *us > 0).map(|us| us.saturating_mul(500));
        Notify { alive_each_ns: alive_each_ns.filter(|_| to.is_some()), to }
    }

    /// Sends a message. A failed write does not stop the daemon.
    pub(crate) fn send(&self, what: &str) {
        if let Some((socket, address)) = &self.to {
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

fn connect(name: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        name => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_reaches_sockets_with_and_without_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let hidden = format!("corebeat-test-{}", std::process::id());
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes().to_owned()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
                format!("@{hidden}").into_bytes(),
            ),
        ];
        for (listener, name) in listeners {
            let notify = Notify { to: Some(connect(&name).unwrap()), alive_each_ns: None };
            notify.send("READY=1");
            let mut heard = [0; 16];
            let length = listener.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1");
        }
    }
}
