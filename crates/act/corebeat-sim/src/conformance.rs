//! The simulator as a subject of the conformance suite.

use crate::{Error, Hardware, Program, Scenario, SimMachine, Step, Team, Work};
use corebeat_conformance::{ProgramSettings, ProgramSpec, Settings, Subject, failures};
use corebeat_machine::{Clock, ProgramId, ThreadId};

/// Start of a program that starts its threads later, in milliseconds.
const START_MS: f64 = 1_000.0;

/// Programs that compute for ten simulated seconds.
struct SimSubject(SimMachine);

impl SimSubject {
    fn new(specs: &[ProgramSpec]) -> Self {
        let programs = specs.iter().map(|spec| {
            let compute: Step = Work::us(1_000.0).into();
            let steps = match spec.has_team {
                true => vec![Step::Parallel { name: "region".into(), steps: vec![compute] }],
                false => vec![compute],
            };
            let steps = vec![Step::Repeat { times: Some(10_000), shared: false, steps }];
            let team = Team::new(spec.threads, steps);
            let start_ms = if spec.grows { START_MS } else { 0.0 };
            Program { nice: spec.nice, start_ms, ..Program::new("p", vec![team]) }
        });
        let scenario = Scenario::new(Hardware::flat(4), programs.collect());
        let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
        machine.clock().wait_until(1);
        SimSubject(machine)
    }
}

impl Subject for SimSubject {
    type Machine = SimMachine;

    fn machine(&mut self) -> &mut SimMachine {
        &mut self.0
    }

    fn program(&self, position: usize) -> ProgramId {
        ProgramId(position as u32)
    }

    fn unknown_thread(&self) -> ThreadId {
        ThreadId { tid: 1_000_000, start_ticks: 0 }
    }

    fn wait(&mut self) {
        let mut clock = self.0.clock();
        clock.wait_until(clock.now_ns() + 10_000_000);
    }

    fn grow(&mut self, _: usize) {
        self.0.clock().wait_until(START_MS as u64 * 1_000_000 + 1);
    }

    fn end(&mut self, _: usize) {
        self.0.run();
    }

    fn own_settings(&mut self, position: usize) -> Settings {
        let first = self.0.world().kernel.programs[position].threads.start;
        self.settings(ThreadId { tid: first as i32 + 1, start_ticks: 0 })
    }

    fn settings(&mut self, thread: ThreadId) -> Settings {
        let world = self.0.world();
        let t = &world.kernel.threads[thread.tid as usize - 1];
        Settings { cpus: t.cpus.clone(), class: t.class, nice: t.nice, slice_ns: t.slice }
    }

    fn program_settings(&mut self, position: usize) -> ProgramSettings {
        let world = self.0.world();
        let group = &world.kernel.programs[position].group;
        ProgramSettings { weight: group.weight, quota: group.quota, frozen: group.frozen }
    }

    fn team_size(&mut self, position: usize) -> Option<u32> {
        let world = self.0.world();
        world.interpreter.teams[position].as_ref().and_then(|team| team.requested())
    }

    fn is_unsupported(&self, _: &Error) -> bool {
        false
    }
}

#[test]
fn simulator_conforms() {
    assert_eq!(failures(SimSubject::new), Vec::<String>::new());
}
