//! Paths of the daemon's socket.

use std::ffi::OsString;
use std::path::PathBuf;

/// Environment variable with the path of the daemon's socket. If set, no other path is used.
pub const VARIABLE: &str = "COREBEAT_SOCKET";
/// Socket of the host-wide daemon.
pub const HOST: &str = "/run/corebeat/socket";

/// A path at which a daemon may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The socket's path.
    pub path: PathBuf,
    /// Whether `COREBEAT_SOCKET` contains the path.
    pub is_given: bool,
}

/// Paths at which daemons may listen, in order of preference: the path in `COREBEAT_SOCKET`;
/// otherwise the user's socket (`$XDG_RUNTIME_DIR/corebeat/socket`) and the host's
/// (`/run/corebeat/socket`). A program with more privileges than its caller (set-user-ID, file
/// capabilities) uses only the host's, because the caller controls the environment.
pub fn places() -> Vec<Place> {
    places_of(variable)
}

/// The path in `COREBEAT_SOCKET`, if set.
pub fn given() -> Option<PathBuf> {
    given_of(variable)
}

/// The user's socket, if the environment determines it.
pub fn of_user() -> Option<PathBuf> {
    of_user_of(variable)
}

/// An environment variable, unless the environment is untrusted; as `secure_getenv(3)`.
fn variable(name: &str) -> Option<OsString> {
    // SAFETY: only reads the auxiliary vector of this process.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { std::env::var_os(name) }
}

fn given_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    variable(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn of_user_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let dir = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute())?;
    Some(dir.join("corebeat/socket"))
}

fn places_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Place> {
    if let Some(path) = given_of(&variable) {
        return vec![Place { path, is_given: true }];
    }
    let own = of_user_of(variable);
    own.into_iter().chain([HOST.into()]).map(|path| Place { path, is_given: false }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;

    fn paths(variables: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
        places_of(variable).into_iter().map(|p| p.path.display().to_string()).collect()
    }

    #[test]
    fn variable_overrides_the_paths_of_user_and_host() {
        assert_eq!(paths(&[]), [HOST]);
        assert_eq!(
            paths(&[("XDG_RUNTIME_DIR", "/run/user/7")]),
            ["/run/user/7/corebeat/socket", HOST]
        );
        assert_eq!(paths(&[("XDG_RUNTIME_DIR", "not/absolute")]), [HOST]);
        assert_eq!(paths(&[(VARIABLE, "/a"), ("XDG_RUNTIME_DIR", "/run/user/7")]), ["/a"]);
        assert_eq!(paths(&[(VARIABLE, "")]), [HOST]);
    }

    /// A set-user-ID copy of this test uses only the host's socket.
    #[test]
    fn privileged_program_ignores_the_environment() {
        const FINDS: &str = "COREBEAT_TEST_FINDS";
        if let Some(expected) = std::env::var_os(FINDS) {
            let found: Vec<_> = places().into_iter().map(|p| p.path).collect();
            assert_eq!(found, [PathBuf::from(expected)]);
            return;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: requires root to create a set-user-ID program");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        chown(&copy, Some(60_001), None).unwrap();
        for (mode, expected) in [(0o755, "/a"), (0o4755, HOST)] {
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut program = std::process::Command::new(&copy);
            program.args(["--exact", "socket::tests::privileged_program_ignores_the_environment"]);
            program.env(VARIABLE, "/a").env(FINDS, expected).uid(60_002).gid(60_002);
            let output = program.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{expected}: {said}");
        }
    }
}
