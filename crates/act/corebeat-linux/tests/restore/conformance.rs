//! This host as a subject of the conformance suite. Ground truth comes from the kernel: `/proc`,
//! `sched_getattr` and the files of control groups.

use crate::victim::{self, Player, identity, settings_of};
use corebeat_conformance::{ProgramSettings, ProgramSpec, Settings, Subject, failures};
use corebeat_linux::{Error, LinuxMachine, Options, TeamChannel};
use corebeat_machine::{Class, ProgramId, ThreadId};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Processes of this executable, watched by a machine.
struct HostSubject {
    machine: LinuxMachine,
    programs: Vec<(Player, ProgramId)>,
    own: Vec<Settings>,
    /// File of the channel to OpenMP teams.
    channel: Option<PathBuf>,
    _state: tempfile::TempDir,
}

impl HostSubject {
    fn new(specs: &[ProgramSpec]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let state_dir = Some(state.path().join("state"));
        let mut machine = LinuxMachine::new(Options { state_dir, ..Options::default() }).unwrap();
        let mut channel = None;
        if specs.iter().any(|spec| spec.has_team) {
            let teams = TeamChannel::create().unwrap();
            let environment = teams.environment(|_| None);
            let path = environment.into_iter().find(|(name, _)| name == "COREBEAT_TEAM");
            channel = path.map(|(_, path)| path.into());
            machine.set_teams(teams);
        }
        let start = |spec: &ProgramSpec| {
            let mut command = Command::new("nice");
            command.arg(format!("-n{}", spec.nice)).arg(std::env::current_exe().unwrap());
            // The test harness has one thread of its own.
            let role = format!("victim {}", spec.threads - 1);
            let mut player = Player::start_with(command, "play", &role);
            player.wait_for("ready");
            let id = machine.watch(player.pid()).unwrap();
            (player, id)
        };
        let programs: Vec<(Player, ProgramId)> = specs.iter().map(start).collect();
        let own = programs.iter().map(|(player, _)| settings(player.pid())).collect();
        HostSubject { machine, programs, own, channel, _state: state }
    }
}

/// Reads the settings of a thread from the kernel.
fn settings(tid: i32) -> Settings {
    let seen = settings_of(tid);
    let class = match seen.policy as i32 {
        libc::SCHED_BATCH => Class::Batch,
        libc::SCHED_IDLE => Class::Idle,
        _ => Class::Normal,
    };
    // A slice that was set is shorter than requested, by less than 1 us for each ms.
    let slice_ns = Some(seen.slice_ns.next_multiple_of(10_000)).filter(|ns| *ns > 0);
    Settings { cpus: seen.cpus, class, nice: seen.nice as i8, slice_ns }
}

/// Reads a file of version 2 or of version 1 from the first of our groups that has the file.
fn group_file(pid: i32, controller: &str, names: [&str; 2]) -> Option<String> {
    let groups = settings_of(pid).group;
    let ours = groups.lines().filter(|line| line.contains("/corebeat-"));
    let mut paths = ours.filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| {
        let file = |root: &str, name| {
            std::fs::read_to_string(format!("/sys/fs/cgroup{root}{path}/{name}")).ok()
        };
        let text = file("", names[0])
            .or_else(|| file("/unified", names[0]))
            .or_else(|| file(&format!("/{controller}"), names[1]))?;
        Some(text.trim().to_owned())
    })
}

impl Subject for HostSubject {
    type Machine = LinuxMachine;

    fn machine(&mut self) -> &mut LinuxMachine {
        &mut self.machine
    }

    fn program(&self, position: usize) -> ProgramId {
        self.programs[position].1
    }

    fn unknown_thread(&self) -> ThreadId {
        identity(std::process::id() as i32)
    }

    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(10));
    }

    fn grow(&mut self, position: usize) {
        let player = &mut self.programs[position].0;
        player.send("more");
        player.wait_for("born");
    }

    fn end(&mut self, position: usize) {
        self.programs[position].0.end();
    }

    fn own_settings(&mut self, position: usize) -> Settings {
        self.own[position].clone()
    }

    fn settings(&mut self, thread: ThreadId) -> Settings {
        settings(thread.tid)
    }

    fn program_settings(&mut self, position: usize) -> ProgramSettings {
        let pid = self.programs[position].0.pid();
        let number = |text: &str| text.parse::<f64>().unwrap();
        let weight = group_file(pid, "cpu", ["cpu.weight", "absent"]).map(|text| number(&text));
        // A weight of 100 is 1,024 shares of version 1.
        let shares = group_file(pid, "cpu", ["absent", "cpu.shares"]);
        let weight = weight.or_else(|| Some(number(&shares?) * 100.0 / 1024.0));
        let quota = match group_file(pid, "cpu", ["cpu.max", "cpu.cfs_quota_us"]) {
            Some(text) if text.starts_with("max") || text == "-1" => None,
            Some(text) => Some(number(text.split(' ').next().unwrap()) / 100_000.0),
            None => None,
        };
        let frozen = group_file(pid, "freezer", ["cgroup.freeze", "freezer.state"])
            .map_or(victim::state(pid) == 'T', |text| !["0", "THAWED"].contains(&text.as_str()));
        ProgramSettings { weight: weight.map(|w| w.round() as u32), quota, frozen }
    }

    fn team_size(&mut self, _: usize) -> Option<u32> {
        // The restoration removes the file.
        let bytes = std::fs::read(self.channel.as_ref().unwrap()).ok()?;
        // The third number of the header, see preload/channel.h.
        let size = u32::from_ne_bytes(bytes[8..12].try_into().unwrap());
        (size > 0).then_some(size)
    }

    fn is_unsupported(&self, error: &Error) -> bool {
        matches!(error, Error::Unsupported { .. } | Error::Denied { .. } | Error::Refused { .. })
    }
}

#[test]
fn linux_conforms() {
    assert_eq!(failures(HostSubject::new), Vec::<String>::new());
}
