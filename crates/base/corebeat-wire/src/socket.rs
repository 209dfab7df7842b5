//! Where the daemon's socket is.

use std::ffi::OsString;
use std::path::PathBuf;

/// Names the daemon's socket, and the only one then.
pub const VARIABLE: &str = "COREBEAT_SOCKET";
/// Where the daemon of the whole host listens.
pub const HOST: &str = "/run/corebeat/socket";

/// A place where a daemon may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The socket's path.
    pub path: PathBuf,
    /// Whether `COREBEAT_SOCKET` names it.
    pub is_given: bool,
}

/// Where daemons may listen, the nearest first: what `COREBEAT_SOCKET` says alone, or else the user's own
/// (`$XDG_RUNTIME_DIR/corebeat/socket`) and the host's (`/run/corebeat/socket`).
pub fn places() -> Vec<Place> {
    places_of(|name| std::env::var_os(name))
}

/// The user's own place, where the environment has one.
pub fn of_user() -> Option<PathBuf> {
    of_user_of(|name| std::env::var_os(name))
}

fn of_user_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let dir = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute())?;
    Some(dir.join("corebeat/socket"))
}

fn places_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Place> {
    if let Some(path) = variable(VARIABLE).filter(|v| !v.is_empty()) {
        return vec![Place { path: path.into(), is_given: true }];
    }
    let own = of_user_of(variable);
    own.into_iter().chain([HOST.into()]).map(|path| Place { path, is_given: false }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(variables: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
        places_of(variable).into_iter().map(|p| p.path.display().to_string()).collect()
    }

    #[test]
    fn places_are_the_given_one_alone_or_the_users_before_the_hosts() {
        assert_eq!(paths(&[]), [HOST]);
        assert_eq!(paths(&[("XDG_RUNTIME_DIR", "/run/user/7")]), ["/run/user/7/corebeat/socket", HOST]);
        assert_eq!(paths(&[("XDG_RUNTIME_DIR", "not/absolute")]), [HOST]);
        assert_eq!(paths(&[(VARIABLE, "/a"), ("XDG_RUNTIME_DIR", "/run/user/7")]), ["/a"]);
        assert_eq!(paths(&[(VARIABLE, "")]), [HOST]);
    }
}
