"""Simulations: programs on a machine of any size, in virtual time, with or without policies.

    import corebeat.sim

    scenario = {
        "machine": {"packages": 2, "cores": 4},
        "programs": [
            {"name": "solver", "teams": [{"threads": 16, "steps": [{"compute": {"us": 5000}}]}]},
        ],
    }
    result = corebeat.sim.run(scenario)
    print(result.time_s, result.programs[0].wait_s)

The page "corebeat sim" of the book describes the keys of a scenario.
"""

import concurrent.futures
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _toml
from ._program import Argument, build, execute_quietly, flat, frame
from ._run import Row

__all__ = ["Applied", "Program", "Ran", "Reinforcer", "Result", "Set", "run", "run_all"]


@dataclass(frozen=True)
class Applied:
    """An action that a policy requested."""

    at_s: float
    policy: str
    program: Optional[str]
    action: str
    why: str
    failed: Optional[str]
    """The reason if the machine refused the action."""


@dataclass(frozen=True)
class Program:
    """The outcome of a program: times of all its threads in seconds, and counts."""

    name: str
    threads: int
    start_s: float
    end_s: Optional[float]
    """`None` if the program has not ended."""
    user_s: float
    system_s: float
    spin_s: float
    """The part of `user_s` in which threads spin."""
    wait_s: float
    """Ready to run, without a CPU."""
    lock_s: float
    park_s: float
    """Blocked at barriers, conditions and queues."""
    sleep_s: float
    switches: int
    """Voluntary context switches."""
    lost: int
    """Involuntary context switches."""
    backstabs: int
    """Switches to a thread of the same program with a higher priority."""
    moved: int
    """Migrations."""
    beats: int


@dataclass(frozen=True)
class Set:
    """A set of threads that run at the same time."""

    name: str
    ran_s: float
    coscheduled_s: float


@dataclass(frozen=True)
class Ran:
    """A run of the search for a thread count."""

    threads: int
    time_s: float
    ended: bool
    beats: int


@dataclass(frozen=True)
class Reinforcer:
    """The search for a thread count, with the policy `reinforcer`."""

    program: str
    rows: list[Row]
    best: Optional[int]
    reason: str
    before: Ran
    after: Ran
    speed: Optional[float]
    """Speedup over the counts of the scenario."""


@dataclass(frozen=True)
class Result:
    """The result of a simulation. Equal scenarios, seeds and policies have equal results."""

    cpus: int
    time_s: float
    events: int
    seed: int
    fingerprint: str
    """A value of all events: equal for equal runs."""
    applied: list[Applied]
    programs: list[Program]
    sets: list[Set]
    reinforcer: Optional[Reinforcer]

    def column(self, name: str) -> list[Any]:
        """A field of all programs, in their order, such as `wait_s`."""
        return [getattr(program, name) for program in self.programs]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each program."""
        return frame([flat(program) for program in self.programs])


def run(
    scenario: Mapping[str, Any],
    *,
    policies: Union[str, Sequence[str]] = (),
    seed: int = 1,
    period_ms: Optional[int] = None,
    model: Optional[Argument] = None,
) -> Result:
    """Runs a scenario on a simulated machine, and returns the result.

    `scenario` has the keys of a scenario in TOML. `policies` replaces those that the scenario
    names. `seed` selects the random times, `period_ms` is the time between two observations, and
    `model` is the file that the policy `adapt` needs.

    Raises `TypeError` for a value that TOML does not have, `ValueError` for an unknown policy or a
    wrong option, and `corebeat.Error` for an invalid scenario or a deadlock of the programs.
    """
    arguments = ["sim", "run", "scenario.toml", "--json", "--seed", str(int(seed))]
    for policy in [policies] if isinstance(policies, str) else policies:
        arguments += ["--policy", policy]
    if period_ms is not None:
        arguments += ["--period", str(int(period_ms))]
    if model is not None:
        arguments += ["--model", os.path.abspath(os.fsdecode(model))]
    text = _toml.dumps(scenario)
    with tempfile.TemporaryDirectory(prefix="corebeat-") as folder:
        with open(os.path.join(folder, "scenario.toml"), "w", encoding="utf-8") as file:
            file.write(text)
        return build(Result, json.loads(execute_quietly(arguments, folder)))


def run_all(scenarios: Iterable[Mapping[str, Any]], **options: Any) -> list[Result]:
    """Runs scenarios side by side, one for each CPU, and returns their results in order.

    The options are those of `run`, for all scenarios: for a study of one parameter, pass a
    scenario for each of its values. The first error is raised after the simulations that have begun.
    """
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            futures = [pool.submit(run, scenario, **options) for scenario in scenarios]
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
