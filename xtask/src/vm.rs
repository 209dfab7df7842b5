//! Runs commands in a virtual machine with two NUMA nodes: QEMU with a kernel of Debian.
//!
//! The host is not changed. The kernel is unpacked in the target folder. The file system of the
//! machine is an archive in memory: the command, the files that its arguments name, the libraries
//! of both, and a shell.

use crate::step::Outcome;
use crate::tool::{find, output};
use crate::workspace::{Workspace, cargo, files};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Default time limit of a command in minutes, which includes the boot.
pub(crate) const MINUTES: u32 = 10;
/// Time limit of each boot of the step `vm`, in minutes.
const STEP_MINUTES: u32 = 8;
/// Time limit of the boot that tests the scheduler, in minutes.
const SCHEDULER_MINUTES: u32 = 15;
/// Time for the kills of `soak`.
const SOAK_MINUTES: u32 = 30;
/// Packages of kernels, in order of preference. Slices of threads need 6.12.
const KERNELS: [&str; 2] = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];
/// Suite of Debian whose kernel loads schedulers (`CONFIG_SCHED_CLASS_EXT`), and names of its
/// packages.
const SCHED_EXT_SUITE: &str = "forky";
const SCHED_EXT_KERNELS: (&str, &str) = ("linux-binary-", "-cloud-amd64");
/// Variable that makes the time of a machine that loads schedulers the number of its instructions,
/// 4 ns each, so that times do not depend on the load of this host. Waits are then much slower.
const COUNTS: &str = "COREBEAT_VM_ICOUNT";
/// Interval of the checks whether the machine has ended.
const POLL: Duration = Duration::from_millis(50);
/// Prefix of the line that has the exit status of the command.
const STATUS: &str = "corebeat-vm-status ";
/// Prefix of the name of a folder in which a process unpacks a kernel. The PID of the process
/// follows.
const UNPACKED: &str = "kernel-";
/// Two sockets of four CPUs. Each socket is a NUMA node.
const MACHINE: &str = "-nodefaults -no-user-config -display none -no-reboot -cpu max -m 1536 \
    -smp 8,sockets=2,cores=4,threads=1 \
    -object memory-backend-ram,size=768M,id=m0 -object memory-backend-ram,size=768M,id=m1 \
    -numa node,nodeid=0,cpus=0-3,memdev=m0 -numa node,nodeid=1,cpus=4-7,memdev=m1 -numa dist,src=0,dst=1,val=21";

/// The tests of the step `vm`, which boots the machine once per cgroup version: the version,
/// package, test file, and words of which one is in the name of a test.
const TESTS: [(Groups, &str, &str, &str); 5] = [
    (Groups::V2, "corebeat-linux", "numa", ""),
    (Groups::V2, "corebeat-linux", "restore", "weight_and_freezer leaves_no_ without_groups"),
    (Groups::V2, "corebeat-cli", "cli", "numa:: held_programs more_programs"),
    (Groups::V1, "corebeat-linux", "restore", "leaves_no_"),
    (Groups::V1, "corebeat-cli", "cli", "held_programs more_programs"),
];

/// A kernel of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// That of this host's release of Debian.
    Release,
    /// One that loads schedulers.
    SchedExt,
}

impl Kernel {
    /// Name of the unpacked kernel.
    fn file(self) -> &'static str {
        match self {
            Kernel::Release => "vmlinuz",
            Kernel::SchedExt => "vmlinuz-sched-ext",
        }
    }

    /// Emulation of the CPUs. With one thread for each CPU, a CPU may execute an instruction that
    /// another is replacing, and a kernel that replaces its own code panics (QEMU 7.2): seldom if
    /// nothing attaches programs to it, so the step `vm` repeats such a run. With one thread for
    /// all CPUs, a program that spins took all time on a busy host.
    fn accelerator(self) -> &'static str {
        match self {
            Kernel::Release => "tcg,thread=multi",
            Kernel::SchedExt => "tcg,thread=single",
        }
    }

    /// The kernel that a command needs.
    fn of_command(command: &[&str]) -> Kernel {
        if command.contains(&"--kernel") { Kernel::SchedExt } else { Kernel::Release }
    }
}

/// The version of control groups that is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    V1,
    V2,
}

/// Runs a command in the machine, shows its output, and returns its exit status.
/// `loads` requests a kernel that loads schedulers, which `--kernel` in the command does as well.
pub(crate) fn run(
    groups: Groups,
    loads: bool,
    minutes: u32,
    command: &[&str],
) -> Result<u8, String> {
    let workspace = Workspace::read()?;
    if let Some(missing) = missing() {
        return Err(missing);
    }
    let needs_scheduler = Kernel::of_command(command) == Kernel::SchedExt;
    // A program of another profile is named by its path.
    if needs_scheduler && command.contains(&"corebeat") {
        build_with_scheduler()?;
    }
    let kernel = if loads || needs_scheduler { Kernel::SchedExt } else { Kernel::Release };
    boot(&workspace, kernel, groups, minutes, command)
}

/// Builds `corebeat` with its scheduler for the kernel.
fn build_with_scheduler() -> Result<(), String> {
    let args = ["build", "-p", "corebeat-cli", "--features", "kernel"];
    let status = Command::new(cargo()).args(args).status();
    match status.map_err(|e| format!("cargo could not be started: {e}"))? {
        status if status.success() => Ok(()),
        status => Err(format!(
            "cargo {}: {status}; the scheduler needs clang, libelf-dev, zlib1g-dev and pkg-config",
            args.join(" ")
        )),
    }
}

/// The missing tool, and how to install it.
fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machine runs on x86-64 only".into());
    }
    for (program, package) in
        [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static")]
    {
        if find(program).is_none() {
            return Some(format!(
                "there is no {program} (apt-get install --no-install-recommends {package}, as root)"
            ));
        }
    }
    for program in ["apt-get", "dpkg-deb", "setpriv"] {
        if find(program).is_none() {
            return Some(format!("there is no {program}: the kernel comes from Debian's packages"));
        }
    }
    None
}

fn boot(
    workspace: &Workspace,
    kernel: Kernel,
    groups: Groups,
    minutes: u32,
    command: &[&str],
) -> Result<u8, String> {
    let folder = workspace.target_directory.join("vm");
    remove_stale(&folder);
    let file = unpacked(kernel, &folder)?;
    // Several machines may run at once.
    let own = folder.join(std::process::id().to_string());
    fs::create_dir_all(&own).map_err(|e| format!("{} cannot be made: {e}", own.display()))?;
    let ended = start(workspace, (kernel, &file), &own, groups, minutes, command);
    let _ = fs::remove_dir_all(&own);
    ended
}

/// Removes the folders that killed runs have left: their names have the PID of an `xtask` that has
/// ended.
fn remove_stale(folder: &Path) {
    let is_stale = |entry: &fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        let owner = name.strip_prefix(UNPACKED).unwrap_or(&name).parse::<u32>();
        owner.is_ok_and(|pid| {
            let runs = fs::read_to_string(format!("/proc/{pid}/comm"));
            !runs.is_ok_and(|name| name.starts_with(env!("CARGO_PKG_NAME")))
        })
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(is_stale) {
        // A folder that remains only takes disk space.
        let _ = fs::remove_dir_all(entry.path());
    }
}

fn start(
    workspace: &Workspace,
    (kernel, file): (Kernel, &Path),
    own: &Path,
    groups: Groups,
    minutes: u32,
    command: &[&str],
) -> Result<u8, String> {
    let (archive, console) = (own.join("initrd"), own.join("console"));
    let bytes = pack(&workspace.target_directory, own, groups, command)?;
    fs::write(&archive, bytes)
        .map_err(|e| format!("{} cannot be written: {e}", archive.display()))?;
    // QEMU is killed with this process.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]).args(MACHINE.split_ascii_whitespace());
    qemu.args(["-accel", kernel.accelerator()]);
    if kernel == Kernel::SchedExt && std::env::var_os(COUNTS).is_some() {
        qemu.args(["-icount", "shift=2,sleep=off"]);
    }
    qemu.arg("-kernel").arg(file).arg("-initrd").arg(&archive);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 reboot=t"]);
    qemu.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
    let mut qemu =
        qemu.stdin(Stdio::null()).spawn().map_err(|e| format!("QEMU could not be started: {e}"))?;
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let status = loop {
        match qemu.try_wait().map_err(|e| format!("QEMU cannot be waited for: {e}"))? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(POLL),
            None => {
                let _ = qemu.kill();
                let _ = qemu.wait();
                return Err(format!(
                    "the command had not ended after {minutes} minutes (--minutes gives more)"
                ));
            }
        }
    };
    let printed = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    if let Some(code) = printed.lines().find_map(|l| l.split_once(STATUS)?.1.trim().parse().ok()) {
        return Ok(code);
    }
    if let Some(signal) = status.signal() {
        return Err(format!("QEMU was killed by signal {signal}"));
    }
    let lines: Vec<&str> = printed.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n    ");
    Err(format!("the machine ended before the command did ({status}); its last lines:\n    {last}"))
}

/// Returns the path of a kernel. The first call downloads and unpacks it.
fn unpacked(kernel: Kernel, folder: &Path) -> Result<PathBuf, String> {
    let file = folder.join(kernel.file());
    if file.is_file() {
        return Ok(file);
    }
    let part = folder.join(format!("{UNPACKED}{}", std::process::id()));
    fs::create_dir_all(&part).map_err(|e| format!("{} cannot be made: {e}", part.display()))?;
    let fetched = match kernel {
        Kernel::Release => of_release(&part),
        Kernel::SchedExt => of_suite(&part),
    };
    let fetched = fetched.and_then(|found| {
        fs::rename(&found, &file).map_err(|e| format!("{} cannot be moved: {e}", found.display()))
    });
    let _ = fs::remove_dir_all(&part);
    fetched.map(|()| file)
}

/// Unpacks the kernel of this host's release.
fn of_release(folder: &Path) -> Result<PathBuf, String> {
    let package = KERNELS.iter().find_map(|name| depends(name)).ok_or_else(|| {
        format!(
            "apt has none of the packages {}: run apt-get update as root, on Debian",
            KERNELS.join(", ")
        )
    })?;
    println!("fetching {package} into {}", folder.display());
    unpack(folder, &package, None)
}

/// Unpacks the newest kernel of the suite whose kernels load schedulers. The sources of apt stay as
/// they are: the lists of the suite are in the folder.
fn of_suite(folder: &Path) -> Result<PathBuf, String> {
    let format = "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)";
    let targets =
        output(Command::new("apt-get").args(["indextargets", "--format", format]).arg(PACKAGES))?;
    let place = targets.lines().find_map(|line| line.strip_prefix("Debian Debian main "));
    let place =
        place.ok_or("apt has no source of Debian's packages: run apt-get update as root")?;
    for part in ["lists/partial", "cache/archives/partial"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).map_err(|e| format!("{} cannot be made: {e}", part.display()))?;
    }
    let (sources, configuration) = (folder.join("sources.list"), folder.join("apt.conf"));
    let own = folder.display();
    let source = format!("deb [signed-by={DEBIAN_KEYS}] {place} {SCHED_EXT_SUITE} main\n");
    let settings = format!(
        "Dir::State::lists \"{own}/lists\"; Dir::Cache \"{own}/cache\";
        Dir::Etc::sourcelist \"{own}/sources.list\"; Dir::Etc::sourceparts \"-\";
        APT::Sandbox::User \"root\"; Acquire::Languages \"none\";\n"
    );
    for (file, text) in [(&sources, source), (&configuration, settings)] {
        fs::write(file, text).map_err(|e| format!("{} cannot be written: {e}", file.display()))?;
    }
    println!("fetching a kernel of Debian {SCHED_EXT_SUITE} into {own}");
    output(Command::new("apt-get").args(["-q", "update"]).env("APT_CONFIG", &configuration))?;
    let (begin, end) = SCHED_EXT_KERNELS;
    let names = output(
        Command::new("apt-cache").args(["pkgnames", begin]).env("APT_CONFIG", &configuration),
    )?;
    let version = |name: &str| -> Option<Vec<u32>> {
        let version = name.strip_prefix(begin)?.strip_suffix(end)?;
        Some(version.split(['.', '+', '-']).map_while(|part| part.parse().ok()).collect())
    };
    let kernels = names.lines().filter_map(|name| Some((version(name)?, name)));
    let (_, package) = kernels
        .max()
        .ok_or_else(|| format!("Debian {SCHED_EXT_SUITE} has no package {begin}VERSION{end}"))?;
    unpack(folder, package, Some(&configuration))
}

/// Condition of the lists of packages among the files that apt downloads.
const PACKAGES: &str = "Created-By: Packages";
/// Keys that sign Debian's packages.
const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the package of the kernel that a metapackage depends on.
fn depends(name: &str) -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", name]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|l| l.trim().strip_prefix("Depends: ").map(str::to_owned))
}

/// Downloads a package with this configuration of apt, and returns the kernel in it.
fn unpack(folder: &Path, package: &str, configuration: Option<&Path>) -> Result<PathBuf, String> {
    // By default apt of root downloads as another user, who may not write to this folder.
    let mut download = Command::new("apt-get");
    download.args(["-q", "-o", "APT::Sandbox::User=root", "download", package]);
    if let Some(file) = configuration {
        download.env("APT_CONFIG", file);
    }
    output(download.current_dir(folder))?;
    let archive = files(folder, ".deb").pop().ok_or("apt-get download left no package")?;
    output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(folder))?;
    // Newer packages have the kernel beside its modules.
    let modules = fs::read_dir(folder.join("usr/lib/modules")).into_iter().flatten().flatten();
    let folders = modules.map(|entry| entry.path()).chain([folder.join("boot")]);
    let kernels: Vec<PathBuf> = folders.flat_map(|folder| files(&folder, "")).collect();
    let is_kernel =
        |p: &&PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz"));
    kernels
        .iter()
        .find(is_kernel)
        .cloned()
        .ok_or_else(|| format!("there is no kernel in {package}"))
}

/// Packs the file system of the machine. Its `/init` runs the command.
fn pack(target: &Path, own: &Path, groups: Groups, command: &[&str]) -> Result<Vec<u8>, String> {
    let built = target.join("debug");
    let mut archive = Archive::default();
    let busybox = find("busybox").ok_or("there is no busybox")?;
    archive.file("/bin/busybox", 0o755, read(&busybox)?);
    let mut words = Vec::new();
    for (i, word) in command.iter().enumerate() {
        // Programs of the target folder are found by name, other files by path. The first word may
        // also be a program of the host.
        let named = built.join(word);
        let file = match word.contains('/') {
            true => fs::canonicalize(word).ok().filter(|p| p.is_file()),
            false => Some(named)
                .filter(|p| p.is_file())
                .or_else(|| (i == 0).then(|| find(word)).flatten()),
        };
        match file {
            Some(file) => {
                add_program(&mut archive, own, &file)?;
                words.push(quote(&file.to_string_lossy()));
            }
            None => words.push(quote(word)),
        }
    }
    // Tests start the program at its path in the target folder.
    let program = built.join("corebeat");
    if program.is_file() {
        add_program(&mut archive, own, &program)?;
    }
    archive.file("/init", 0o755, init(&built, groups, &words.join(" ")).into_bytes());
    Ok(archive.bytes())
}

fn add_program(archive: &mut Archive, own: &Path, file: &Path) -> Result<(), String> {
    let name = file.to_string_lossy();
    if archive.holds(&name) {
        return Ok(());
    }
    // Debug information is the largest part of a program, and the archive takes memory.
    let stripped = own.join("stripped");
    let is_stripped =
        output(Command::new("strip").arg("-g").arg("-o").arg(&stripped).arg(file)).is_ok();
    archive.file(&name, 0o755, read(if is_stripped { &stripped } else { file })?);
    let output = Command::new("ldd")
        .arg(file)
        .output()
        .map_err(|e| format!("ldd could not be started: {e}"))?;
    // ldd prints a library as 'name => /path (address)', the loader as '/path (address)', and no
    // path for a static program.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for library in
        text.lines().filter_map(|l| l.split_ascii_whitespace().find(|w| w.starts_with('/')))
    {
        if !archive.holds(library) {
            archive.file(library, 0o755, read(Path::new(library))?);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|e| format!("{} cannot be read: {e}", file.display()))
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The script `/init` of the machine.
fn init(built: &Path, groups: Groups, command: &str) -> String {
    let mount_groups = match groups {
        Groups::V2 => "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        Groups::V1 => {
            "mount -t tmpfs tmpfs /sys/fs/cgroup
            for c in cpu freezer; do mkdir /sys/fs/cgroup/$c; mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c; done"
        }
    };
    format!(
        "#!/bin/busybox sh
        /bin/busybox --install -s /bin
        export PATH={}:/bin HOME=/root COREBEAT_VM=1 RUST_BACKTRACE=0
        mkdir -p /proc /sys /dev /tmp /root /var/lib /run /usr/bin
        mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
        mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; mkdir -p {}/tmp
        {mount_groups}
        ip link set lo up
        cd /tmp
        stty -F /dev/ttyS1 raw -echo
        setsid {command} </dev/null >/dev/ttyS1 2>&1
        echo {STATUS}$? >/dev/console
        reboot -f\n",
        quote(&built.to_string_lossy()),
        quote(&built.parent().unwrap_or(built).to_string_lossy()),
    )
}

/// An archive in the format of the initial RAM file system (`newc`; Linux,
/// Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Default)]
struct Archive {
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    fn holds(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.files.insert(path.to_owned(), (0o100_000 | mode, bytes));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut inode = 0;
        let mut entry = |name: &str, mode: u32, device: (u32, u32), bytes: &[u8]| {
            inode += 1;
            let size = bytes.len() as u32;
            let fields =
                [inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
            out.extend_from_slice(b"070701");
            fields.iter().for_each(|f| out.extend_from_slice(format!("{f:08x}").as_bytes()));
            out.extend_from_slice(name.as_bytes());
            out.push(0);
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(4), 0);
        };
        let mut folders =
            BTreeSet::from([Path::new("/dev"), Path::new("/sys"), Path::new("/proc")]);
        folders.extend(self.files.keys().flat_map(|f| Path::new(f).ancestors().skip(1)));
        for folder in folders.into_iter().filter(|f| *f != Path::new("/")) {
            entry(folder.to_string_lossy().trim_start_matches('/'), 0o040_755, (0, 0), &[]);
        }
        // The output of `/init` goes there.
        entry("dev/console", 0o020_600, (5, 1), &[]);
        for (path, (mode, bytes)) in &self.files {
            entry(path.trim_start_matches('/'), *mode, (0, 0), bytes);
        }
        entry("TRAILER!!!", 0, (0, 0), &[]);
        out
    }
}

/// The step `vm`: tests that need two NUMA nodes, or only one version of control groups.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, String> {
    if let Some(missing) = missing() {
        return Ok(Outcome::Skipped(missing));
    }
    for groups in [Groups::V2, Groups::V1] {
        println!("in the machine, control groups {groups:?}:");
        let (mut script, mut binaries) = ("set -e".to_owned(), Vec::new());
        for (_, package, test, words) in TESTS.iter().filter(|t| t.0 == groups) {
            binaries.push(build(package, test, None)?);
            script += &format!("\necho {package} --test {test} {words}");
            script += &format!("; \"$1\" --test-threads 1 {words}; shift");
        }
        // The tests are arguments of the script, because files that arguments name are packed.
        let words = ["sh", "-c", &script, "vm"].into_iter().map(Cow::from);
        let command: Vec<Cow<str>> =
            words.chain(binaries.iter().map(|b| b.to_string_lossy())).collect();
        let command: Vec<&str> = command.iter().map(|word| &**word).collect();
        let run = || boot(workspace, Kernel::Release, groups, STEP_MINUTES, &command);
        let ended = run().or_else(|why| {
            println!("{why}\nthe machine failed, and no test did: once more:");
            run()
        });
        match ended? {
            0 => {}
            code => {
                return Err(format!(
                    "the tests ended with {code} in the virtual machine ({groups:?})"
                ));
            }
        }
    }
    check_scheduler(workspace)
}

/// The reason why the tests of the scheduler in the kernel cannot run here.
fn scheduler_missing(workspace: &Workspace) -> Option<String> {
    let is_file = |path: &str| Path::new(path).is_file();
    let missing = ["clang", "make", "pkg-config"].into_iter().find(|tool| find(tool).is_none());
    let missing = missing.or(Some("libelf-dev").filter(|_| !is_file("/usr/include/gelf.h")));
    let missing = missing.or(Some("zlib1g-dev").filter(|_| !is_file("/usr/include/zlib.h")));
    if let Some(missing) = missing {
        return Some(format!(
            "the scheduler is not tested: there is no {missing} (apt-get install {missing})"
        ));
    }
    let kernel = unpacked(Kernel::SchedExt, &workspace.target_directory.join("vm"));
    kernel.err().map(|why| format!("the scheduler is not tested: {why}"))
}

/// The tests of the scheduler and of the table in the kernel, in a machine whose kernel loads
/// schedulers. Where they cannot be built, or the kernel cannot be fetched, they are skipped.
fn check_scheduler(workspace: &Workspace) -> Result<Outcome, String> {
    if let Some(why) = scheduler_missing(workspace) {
        return Ok(Outcome::Skipped(why));
    }
    println!("in the machine, with a kernel that loads schedulers:");
    build_with_scheduler()?;
    let tests = ["vm", "table"].map(|test| build("corebeat-kernel", test, Some("bpf")));
    let [test, table] = tests.map(|path| path.map(|path| path.to_string_lossy().into_owned()));
    let script = "set -e; export COREBEAT_VM_SCHED_EXT=1
        for t in \"$2\" \"$1\"; do \"$t\" --test-threads 1 --show-output; done
        corebeat doctor > /tmp/doctor; grep -q '^yes .*scheduler of Corebeat' /tmp/doctor
        grep -q '^yes .*counts of threads in the kernel' /tmp/doctor
        A='corebeat workload cluster-spin -t 4 -s 0.001'
        corebeat run --kernel --tables --policy coscheduling --report-file /tmp/report -- $A -- $A
        cat /tmp/report; grep -q 'coscheduled at least' /tmp/report
        if grep -q 'read from /proc' /tmp/report; then exit 1; fi
        corebeat run --kernel --all --policy coscheduling -- $A -- $A
        [ $(cat /sys/kernel/sched_ext/state) = disabled ]";
    boot_tests(workspace, &["sh", "-c", script, "vm", &test?, &table?], SCHEDULER_MINUTES)
}

/// The test that kills the process of the scheduler, at many moments: a part of `soak`.
pub(crate) fn soak(workspace: &Workspace) -> Result<Outcome, String> {
    if let Some(why) = missing().or_else(|| scheduler_missing(workspace)) {
        return Ok(Outcome::Skipped(why));
    }
    let test = build("corebeat-kernel", "vm", Some("bpf"))?.to_string_lossy().into_owned();
    let script = "export COREBEAT_VM_SCHED_EXT=1 COREBEAT_SOAK=1
        \"$1\" --exact kernel_scheduler_ends_with_its_process --show-output";
    boot_tests(workspace, &["sh", "-c", script, "vm", &test], SOAK_MINUTES)
}

fn boot_tests(workspace: &Workspace, command: &[&str], minutes: u32) -> Result<Outcome, String> {
    match boot(workspace, Kernel::SchedExt, Groups::V2, minutes, command)? {
        0 => Ok(Outcome::Passed),
        code => Err(format!("the tests of the scheduler ended with {code} in the virtual machine")),
    }
}

/// Builds a test with a feature, and returns its path.
fn build(package: &str, test: &str, feature: Option<&str>) -> Result<PathBuf, String> {
    let args = ["test", "-p", package, "--test", test, "--no-run", "--message-format=json"];
    let features = feature.map(|feature| ["--features", feature]).into_iter().flatten();
    let args: Vec<&str> = args.into_iter().chain(features).collect();
    let output = Command::new(cargo()).args(&args).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", args.join(" "), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == test && message["profile"]["test"] == true;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    };
    text.lines()
        .find_map(executable)
        .ok_or_else(|| format!("cargo built no test {test} in {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_runs_have_left_is_removed_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("xtask-vm-{}", std::process::id()));
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let (gone, own) = (gone.id().to_string(), std::process::id().to_string());
        // The number is free, or belongs to a process other than xtask.
        for name in [&gone, &format!("{UNPACKED}{gone}"), "1", &own, "other"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("vmlinuz"), "").unwrap();
        remove_stale(&folder);
        let left: BTreeSet<String> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, ["other", "vmlinuz", own.as_str()].map(String::from).into());
    }
}
