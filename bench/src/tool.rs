//! Programs of other projects that benches use.

use crate::child::Running;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The limit of a build step. The first time, Go compiles its standard library.
const MAKE_MAX: Duration = Duration::from_secs(300);

/// Runs a build step of a program.
pub(crate) fn make(step: Command, program: &str) -> Result<(), String> {
    let ended = Running::start(step, false)?.wait(MAKE_MAX)?;
    ended.check().map_err(|why| format!("cannot build {program}: {why}"))
}

/// A program, header, archive or source that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    /// The name, which is also the command of a program.
    pub(crate) program: &'static str,
    pub(crate) origin: Origin,
}

/// The source from which the user gets a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A program of this Debian package.
    Package(&'static str),
    /// A C header of this Debian package.
    Header(&'static str),
    /// A Java archive with this Maven name, in `.m2/repository` of the home folder.
    Maven(&'static str),
    /// Source in the folder that this environment variable names.
    Source(&'static str),
    /// A module of the `python3` in the path, which pip installs from this package.
    Python(&'static str),
}

pub(crate) const IGRAPH: Tool = Tool::module("igraph", "igraph");
pub(crate) const DUCKDB: Tool = Tool::module("duckdb", "duckdb");
pub(crate) const KUZU: Tool = Tool::module("kuzu", "kuzu");
pub(crate) const RUSTWORKX: Tool = Tool::module("rustworkx", "rustworkx");
pub(crate) const GRAPHBLAS: Tool = Tool::module("graphblas", "python-graphblas");
pub(crate) const RAY: Tool = Tool::module("ray", "ray");
pub(crate) const DASK: Tool = Tool::module("distributed", "distributed");
pub(crate) const SIMSO: Tool = Tool::module("simso", "simso");
/// No registry has pyCPA.
pub(crate) const PYCPA: Tool = Tool::module("pycpa", "git+https://github.com/IDA-TUBS/pycpa");

pub(crate) const TOP: Tool = Tool::package("top", "procps");
pub(crate) const PIDSTAT: Tool = Tool::package("pidstat", "sysstat");
pub(crate) const PERF: Tool = Tool::package("perf", "linux-perf");
pub(crate) const GCC: Tool = Tool::package("gcc", "gcc");
pub(crate) const GPP: Tool = Tool::package("g++", "g++");
pub(crate) const GO: Tool = Tool::package("go", "golang-go");
pub(crate) const NODE: Tool = Tool::package("node", "nodejs");
pub(crate) const REDIS_SERVER: Tool = Tool::package("redis-server", "redis-server");
pub(crate) const REDIS_BENCHMARK: Tool = Tool::package("redis-benchmark", "redis-tools");
pub(crate) const NGINX: Tool = Tool::package("nginx", "nginx-light");
pub(crate) const WRK: Tool = Tool::package("wrk", "wrk");
pub(crate) const GZIP: Tool = Tool::package("gzip", "gzip");
pub(crate) const XZ: Tool = Tool::package("xz", "xz-utils");
pub(crate) const PBZIP2: Tool = Tool::package("pbzip2", "pbzip2");
pub(crate) const SEVEN_ZIP: Tool = Tool::package("7z", "p7zip-full");
pub(crate) const ZSTD: Tool = Tool::package("zstd", "zstd");
pub(crate) const PIGZ: Tool = Tool::package("pigz", "pigz");
pub(crate) const LBZIP2: Tool = Tool::package("lbzip2", "lbzip2");
pub(crate) const FFMPEG: Tool = Tool::package("ffmpeg", "ffmpeg");
pub(crate) const POVRAY: Tool = Tool::package("povray", "povray");
pub(crate) const GM: Tool = Tool::package("gm", "graphicsmagick");
pub(crate) const SYSBENCH: Tool = Tool::package("sysbench", "sysbench");

pub(crate) const LTTNG: Tool = Tool::package("lttng", "lttng-tools");
pub(crate) const LTTNG_SESSIOND: Tool = Tool::package("lttng-sessiond", "lttng-tools");
pub(crate) const LTTNG_UST: Tool =
    Tool { program: "lttng/tracepoint.h", origin: Origin::Header("liblttng-ust-dev") };
pub(crate) const JAVA: Tool = Tool::package("java", "default-jre-headless");
pub(crate) const JAVAC: Tool = Tool::package("javac", "default-jdk-headless");

/// The archive contains its dependencies.
pub(crate) const KIEKER: Tool = Tool {
    program: "net/kieker-monitoring/kieker/1.13/kieker-1.13-emf.jar",
    origin: Origin::Maven("net.kieker-monitoring:kieker:1.13:jar:emf"),
};

/// Version 1.0.4 or later.
pub(crate) const TINYSTM: Tool =
    Tool { program: "TinySTM", origin: Origin::Source("COREBEAT_TINYSTM_SOURCE") };

/// The suite of applications. `.gz` files of it may be absent that no case reads.
pub(crate) const STAMP: Tool =
    Tool { program: "STAMP", origin: Origin::Source("COREBEAT_STAMP_SOURCE") };

impl Tool {
    pub(crate) const fn package(program: &'static str, package: &'static str) -> Tool {
        Tool { program, origin: Origin::Package(package) }
    }

    const fn module(program: &'static str, package: &'static str) -> Tool {
        Tool { program, origin: Origin::Python(package) }
    }

    /// The path of an installed tool.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self.origin {
            Origin::Source(variable) => {
                return std::env::var_os(variable)
                    .map(PathBuf::from)
                    .filter(|folder| folder.is_dir());
            }
            Origin::Header(_) => {
                // The include paths of gcc. The second path is specific to one processor.
                let found = |folder: &str| {
                    Some(PathBuf::from(folder).join(self.program)).filter(|h| h.is_file())
                };
                let processor = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
                return ["/usr/include", &processor].into_iter().find_map(found);
            }
            Origin::Maven(_) => {
                let home = std::env::home_dir()?;
                return Some(home.join(".m2/repository").join(self.program))
                    .filter(|jar| jar.is_file());
            }
            Origin::Python(_) => {
                let find =
                    "import importlib.util as i, sys; print(i.find_spec(sys.argv[1]).origin)";
                let mut python = Command::new("python3");
                let found = python.args(["-c", find, self.program]).output().ok()?;
                let origin = String::from_utf8(found.stdout).ok()?;
                return found.status.success().then(|| PathBuf::from(origin.trim_end()));
            }
            Origin::Package(_) => {}
        }
        let folders = std::env::var_os("PATH")?;
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        std::env::split_paths(&folders).map(|folder| folder.join(self.program)).find(is_program)
    }

    /// A line that states how to install the tool.
    pub(crate) fn advice(&self) -> String {
        match self.origin {
            Origin::Package(package) | Origin::Header(package) => {
                format!("{} is missing (apt install {package})", self.program)
            }
            Origin::Maven(artifact) => {
                let name = self.program.rsplit('/').next().unwrap_or(self.program);
                format!(
                    "{name} is missing (mvn dependency:get -Dtransitive=false -Dartifact={artifact})"
                )
            }
            Origin::Python(package) => {
                format!("{} is missing (pip install {package})", self.program)
            }
            Origin::Source(variable) => {
                format!(
                    "{} is missing (set {variable} to the folder with its source)",
                    self.program
                )
            }
        }
    }
}
