//! `corebeat daemon`: the service for a whole host, or for one user; and how it is.

mod status;

use crate::failure::{Done, Failure};
use corebeat_daemon::{Daemon, Failure as Ended, Level, Options as How, Place, Scope};
use corebeat_linux::state_dir;
use corebeat_wire::socket;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::pipe;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Whom to serve: everybody on this host, or the user who runs it alone. Root serves the host if nothing is said
    #[arg(long, value_enum)]
    scope: Option<ScopeName>,
    /// The socket that programs connect to, instead of $COREBEAT_SOCKET, or else /run/corebeat/socket (host) or
    /// $XDG_RUNTIME_DIR/corebeat/socket (user)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Offer a page for Prometheus there: unix:/PATH, or a port of 127.0.0.1
    #[arg(long, value_name = "PLACE")]
    metrics: Option<Place>,
    /// Milliseconds from one sample of the heartbeats to the next
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    period: u64,
    /// By which policy programs are steered
    #[arg(long, value_enum, default_value = "fair")]
    policy: PolicyName,
    /// The least important lines that are logged; with debug, what is done to programs and why, too
    #[arg(long, value_enum, default_value = "info")]
    log: LevelName,
    /// Milliseconds from one observation of the programs to the next
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    observe: u64,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Tell how the daemon that runs is, and what it cannot do here
    Status(status::Options),
}

impl Options {
    /// Whether this is to be the daemon.
    pub(crate) fn serves(&self) -> bool {
        self.command.is_none()
    }
}

/// By what programs are steered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyName {
    /// Shares of the CPUs by how far programs are from their goals (Metronome)
    Fair,
    /// Not at all
    None,
}

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LevelName {
    Warning,
    Notice,
    Info,
    Debug,
}

/// Whom to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScopeName {
    /// Everybody on this host
    Host,
    /// The user who runs it
    User,
}

pub(crate) fn main(options: Options) -> Done {
    if let Some(Command::Status(options)) = options.command {
        return status::main(options);
    }
    let is_root = rustix::process::geteuid().is_root();
    let scope = match options.scope {
        Some(ScopeName::Host) => Scope::Host,
        Some(ScopeName::User) => Scope::User,
        None if is_root => Scope::Host,
        None => Scope::User,
    };
    let usual = match scope {
        Scope::Host => Some(socket::HOST.into()),
        Scope::User => socket::of_user(),
    };
    let given = match socket::given() {
        Some(path) if options.socket.is_none() && !path.is_absolute() => {
            return Err(Failure::usage(corebeat_wire::Error::Relative(path)));
        }
        given => given,
    };
    let socket = options.socket.or(given).or(usual);
    let socket = socket.ok_or_else(|| {
        Failure::usage("set XDG_RUNTIME_DIR, or name a socket with --socket or COREBEAT_SOCKET")
    })?;
    let mut how = How::new(socket, scope, state_dir()?);
    how.metrics = options.metrics;
    how.log = match options.log {
        LevelName::Warning => Level::Warning,
        LevelName::Notice => Level::Notice,
        LevelName::Info => Level::Info,
        LevelName::Debug => Level::Debug,
    };
    how.steers = options.policy == PolicyName::Fair;
    how.sample_ns = options.period * 1_000_000;
    how.observe_ns = options.observe * 1_000_000;
    let stop = stop().map_err(|e| Failure::own(format!("cannot take signals: {e}")))?;
    Daemon::open(how).and_then(|daemon| daemon.run(stop.as_fd())).map_err(|ended| match ended {
        Ended::Own(e) => Failure::own(e),
        Ended::Host(e) => e.into(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Readable once somebody wants this process to end.
fn stop() -> std::io::Result<UnixStream> {
    let (stop, tell) = UnixStream::pair()?;
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        pipe::register(signal, tell.try_clone()?)?;
    }
    Ok(stop)
}
