//! `corebeat daemon`: the service for a whole host or for one user, and its status.

#[cfg_attr(not(feature = "all-commands"), path = "daemon/no_outlet.rs")]
mod outlet;
mod status;

use crate::run::ALL_ALONE;
use corebeat_command::{Done, Failure, policy_parser, wake_at_ending_signal};
use corebeat_daemon::{
    Daemon, Failure as Ended, Level, Options as How, Pattern, Place, Scope, Selection, Steering,
    Token, WebPage,
};
use corebeat_linux::state_dir;
use corebeat_policy::catalogue::{Environment, PolicyName};
use corebeat_policy::knob::Knob;
use corebeat_wire::socket;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Serve all users of this host, or only the user of the daemon [default: host for root, else
    /// user]
    #[arg(long, value_enum)]
    scope: Option<ScopeName>,
    /// Listen on this socket [default: $COREBEAT_SOCKET, else /run/corebeat/socket (host) or
    /// $XDG_RUNTIME_DIR/corebeat/socket (user)]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve metrics for Prometheus on unix:/PATH or on this port of 127.0.0.1
    #[arg(long, value_name = "PLACE", value_parser = local_place)]
    metrics: Option<Place>,
    /// Serve a web page about the host on unix:/PATH, a port of 127.0.0.1 or ADDRESS:PORT
    /// [default place: 127.0.0.1:9478]
    #[arg(long, value_name = "PLACE", num_args = 0..=1, default_missing_value = "9478")]
    web: Option<Place>,
    /// Serve the web page only to browsers that have the token in this file
    #[arg(long, value_name = "FILE", requires = "web")]
    web_token: Option<PathBuf>,
    #[command(flatten)]
    outlet: outlet::Options,
    /// Sample the heartbeats every MS milliseconds
    #[arg(
        long, value_name = "MS", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(10..=10_000)
    )]
    period: u64,
    /// Choose the policy that steers programs; with auto, programs with goals are steered by fair
    #[arg(long, value_parser = policy_parser(Environment::Daemon), default_value = "fair")]
    policy: PolicyName,
    /// With auto, steer only these programs: NAME, /CONTROL/GROUP or UNIT.service; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    include: Vec<Pattern>,
    /// With auto, leave these programs alone: NAME, /CONTROL/GROUP or UNIT.service; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    exclude: Vec<Pattern>,
    /// With auto, steer programs that use this number of CPUs, such as 1.5 [default: 0.5]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    threshold: Option<f64>,
    /// With auto, steer at most this number of programs at the same time [default: 16]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    programs: Option<u16>,
    /// Load the scheduler of Corebeat into the kernel for the steered programs; requires root
    #[arg(long)]
    kernel: bool,
    /// With --kernel, schedule all threads of the host
    #[arg(long)]
    all: bool,
    /// With auto, change only these settings [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    knobs: Vec<KnobName>,
    /// Log lines of this level and above; debug logs every action with its reason
    #[arg(long, value_enum, default_value = "info")]
    log: LevelName,
    /// Observe the programs every MS milliseconds
    #[arg(
        long, value_name = "MS", default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(20..=60_000)
    )]
    observe: u64,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the status of the running daemon, and its limitations on this host
    Status(status::Options),
}

impl Options {
    /// Whether this process becomes the daemon.
    pub(crate) fn serves(&self) -> bool {
        self.command.is_none()
    }
}

/// Importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LevelName {
    Warning,
    Notice,
    Info,
    Debug,
}

/// Settings that the policy auto changes for running programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KnobName {
    /// Scheduling class and time slice
    Slice,
    /// Placement of memory on NUMA nodes
    Memory,
    /// CPUs of each thread
    Place,
}

fn local_place(text: &str) -> Result<Place, String> {
    let place: Option<Place> = text.parse().ok();
    place
        .filter(Place::is_local)
        .ok_or_else(|| "write unix:/PATH, or a port of 127.0.0.1 such as 9477".into())
}

/// The web page, with the token from its file.
fn web_page(place: Place, token: Option<&Path>) -> Result<WebPage, Failure> {
    let token = token.map(|path| {
        let name = path.display();
        let unreadable = |e| Failure::usage(format!("cannot read {name}: {e}; name another file"));
        // Without waiting for the writer of a pipe.
        let open = File::options().read(true).custom_flags(NONBLOCK).open(path);
        let file = open.map_err(unreadable)?;
        let status = file.metadata().map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        if !status.is_file() || ![own, 0].contains(&status.uid()) {
            return Err(Failure::usage(format!(
                "{name} is no regular file of the daemon's user or root; name another file"
            )));
        }
        if status.mode() & 0o077 != 0 {
            return Err(Failure::usage(format!(
                "other users have access to {name}; run 'chmod go= {name}'"
            )));
        }
        let mut text = String::new();
        file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        text.parse::<Token>().map_err(|e| Failure::usage(format!("cannot use {name}: {e}")))
    });
    Ok(WebPage::new(place, token.transpose()?))
}

fn pattern(text: &str) -> Result<Pattern, String> {
    match text {
        "" => Err("write a name, a path of a control group, or a unit".into()),
        _ => text.parse().map_err(|e| match e {}),
    }
}

/// Flag of `open`.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// Largest size of the file of a token that is read, in bytes. A token is shorter.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Least threshold, in CPUs: the kernel accounts CPU time in ticks.
const THRESHOLD_MIN: f64 = 0.05;
/// Largest threshold, in CPUs: as many as Linux supports.
const THRESHOLD_MAX: f64 = 8192.0;

fn cpus(text: &str) -> Result<f64, String> {
    let cpus: Option<f64> = text.parse().ok();
    cpus.filter(|cpus| (THRESHOLD_MIN..=THRESHOLD_MAX).contains(cpus)).ok_or_else(|| {
        format!("write a number of CPUs from {THRESHOLD_MIN} to {THRESHOLD_MAX}, such as 0.5")
    })
}

/// Returns which programs the daemon steers.
///
/// # Errors
/// An option does not apply to the policy.
fn steering(options: &Options) -> Result<Steering, Failure> {
    let Options { include, exclude, threshold, programs, knobs, .. } = options;
    let selects = [!include.is_empty(), !exclude.is_empty(), !knobs.is_empty()].contains(&true)
        || threshold.is_some()
        || programs.is_some();
    match options.policy {
        PolicyName::Auto => {
            let default = Selection::default();
            let knob = |name: &KnobName| match name {
                KnobName::Slice => Knob::Slice,
                KnobName::Memory => Knob::Memory,
                KnobName::Place => Knob::Place,
            };
            Ok(Steering::Auto(Selection {
                include: include.clone(),
                exclude: exclude.clone(),
                threshold_cpus: threshold.unwrap_or(default.threshold_cpus),
                programs_max: programs.map_or(default.programs_max, usize::from),
                knobs: match knobs.is_empty() {
                    true => default.knobs,
                    false => knobs.iter().map(knob).collect(),
                },
            }))
        }
        _ if selects => Err(Failure::usage(
            "--include, --exclude, --threshold, --programs and --knobs apply to the policy auto; \
             remove them or add --policy auto",
        )),
        PolicyName::Fair => Ok(Steering::Fair),
        _ => Ok(Steering::None),
    }
}

/// Users to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScopeName {
    /// All users of this host
    Host,
    /// The user of the daemon
    User,
}

pub(crate) fn main(options: Options) -> Done {
    if let Some(Command::Status(options)) = options.command {
        return status::main(options);
    }
    if options.all && !options.kernel {
        return Err(Failure::usage(ALL_ALONE));
    }
    let steering = steering(&options)?;
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
    let named = options.socket.or(given);
    let creates_folder = named.is_none();
    let socket = named.or(usual).ok_or_else(|| {
        Failure::usage(
            "there is no place for the socket; set XDG_RUNTIME_DIR, or name a socket with --socket",
        )
    })?;
    let mut how = How::new(socket, scope, state_dir()?);
    how.creates_folder = creates_folder;
    how.metrics = options.metrics;
    let token = options.web_token.as_deref();
    how.web = options.web.map(|place| web_page(place, token)).transpose()?;
    how.log = match options.log {
        LevelName::Warning => Level::Warning,
        LevelName::Notice => Level::Notice,
        LevelName::Info => Level::Info,
        LevelName::Debug => Level::Debug,
    };
    how.steering = steering;
    how.kernel = options.kernel;
    how.all = options.all;
    how.sample_ns = options.period * 1_000_000;
    how.observe_ns = options.observe * 1_000_000;
    let stop = wake_at_ending_signal()
        .map_err(|e| Failure::internal(format!("cannot handle signals: {e}")))?;
    let outlets = options.outlet.start(&mut how)?;
    let ended = serve(how, stop.as_fd());
    // The daemon has undone its changes. Its last observations may wait for the disk.
    outlets.finish();
    ended?;
    Ok(ExitCode::SUCCESS)
}

fn serve(how: How, stop: BorrowedFd<'_>) -> Result<(), Failure> {
    Daemon::open(how).and_then(|daemon| daemon.run(stop)).map_err(|ended| match ended {
        Ended::Own(e) if e.is_usage() => Failure::usage(e),
        Ended::Own(e) => Failure::internal(e),
        Ended::Host(e) => e.into(),
    })
}
