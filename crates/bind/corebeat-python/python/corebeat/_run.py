"""`corebeat run` and `corebeat tune`: runs of programs under a policy, and their reports."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from ._native import Error
from ._program import Argument, build, execute, flat, frame

__all__ = [
    "Applied",
    "Comparison",
    "Counters",
    "Ended",
    "Inaction",
    "Oversubscription",
    "Profile",
    "ProgramReport",
    "Regions",
    "Report",
    "Row",
    "Shares",
    "SpinFunction",
    "Trial",
    "Tuned",
    "run",
    "tune",
]


@dataclass(frozen=True)
class Ended:
    """The end of a program."""

    how: str
    """`exit`, `signal`, `unknown`, or `detached` from a process that continues."""
    number: Optional[int]
    """The exit status, or the number of the signal."""

    @staticmethod
    def _of_json(value: Any) -> dict[str, Any]:
        how, number = (value, None) if isinstance(value, str) else next(iter(value.items()))
        return {"how": how, "number": number}


@dataclass(frozen=True)
class Shares:
    """Parts of the time of all threads, 0 to 1. `None` is unknown."""

    user: Optional[float]
    """Running in user mode."""
    system: Optional[float]
    """Running in the kernel."""
    lock: Optional[float]
    """Blocked on a lock that another thread holds."""
    park: Optional[float]
    """Blocked until another thread wakes the thread, without a lock."""
    wait: Optional[float]
    """Ready to run, without a CPU."""
    sleep: Optional[float]
    """Blocked on anything else."""
    spin: Optional[float]
    """The part of `user` in loops that read one memory location."""


@dataclass(frozen=True)
class SpinFunction:
    """A function in which threads spin."""

    share: float
    """Part of the time of all threads."""
    function: Optional[str] = None
    """The name, if a symbol contains the code."""
    file: Optional[str] = None
    """The path of the code."""
    offset: Optional[int] = None
    """Position in the file, in bytes, if the name is unknown."""


@dataclass(frozen=True)
class Counters:
    """Sums of the counters. `None` is unknown."""

    voluntary_switches: Optional[int]
    involuntary_switches: Optional[int]
    migrations: Optional[int]
    cache_references: Optional[int]
    cache_misses: Optional[int]
    instructions: Optional[int]


@dataclass(frozen=True)
class Regions:
    """OpenMP parallel regions that ran with one team size."""

    size: int
    """Threads of the team."""
    count: int
    """Number of regions."""
    time_s: float
    """Time in these regions, in seconds."""


@dataclass(frozen=True)
class Applied:
    """An action that a policy requested."""

    at_s: float
    """Time since the start, in seconds."""
    policy: str
    program: str
    action: Any
    """The action as JSON: its name and its parameters."""
    why: str
    """The reason."""
    changed: Optional[int]
    """Number of changed threads, 1 for a setting of a whole program."""
    failed: Optional[str]
    """The reason if the action was refused."""


@dataclass(frozen=True)
class Inaction:
    """Why a policy left the program as it is."""

    policy: str
    why: str


@dataclass(frozen=True)
class ProgramReport:
    """One program, or the sum of all programs of a run."""

    command: list[str]
    ended: Ended
    wall_s: float
    """Time from the first instruction to the end, in seconds."""
    cpu_user_s: float
    """CPU time in user mode, in seconds."""
    cpu_system_s: float
    """CPU time in the kernel, in seconds."""
    cpus_busy: Optional[float]
    """CPU time over `wall_s`."""
    threads_seen: int
    """Number of different threads."""
    threads_max: int
    """Largest number of threads at the same time."""
    shares: Shares
    spin_functions: list[SpinFunction]
    """The functions with the largest parts of `shares.spin`, the largest first."""
    counters: Counters
    io_bytes: Optional[int]
    """Bytes read and written by system calls."""
    regions: list[Regions]
    turns_s: Optional[float]
    """Of a program that took turns: time for which it was not frozen, in seconds."""
    coscheduled: Optional[float]
    """Of a program that took turns: lower bound on the part of `turns_s` with all CPUs of the program."""
    applied: list[Applied]
    inactions: list[Inaction]


@dataclass(frozen=True)
class Report(ProgramReport):
    """The report of a run. The fields of `ProgramReport` describe all programs together."""

    policy: str
    slice_ms: Optional[int]
    """With coscheduling: length of a turn, in milliseconds."""
    cpus: int
    """Smallest number of threads that can use all CPU time."""
    cpus_allowed: str
    """CPUs on which the programs may run, such as `0-3,8`."""
    quota: Optional[float]
    """Quota of the control groups, in CPUs."""
    answers: list[Any]
    """Answers to programs that count CPUs, as JSON."""
    throttled_s: Optional[float]
    """Time for which the quota stopped the control group, in seconds."""
    others_busy: Optional[float]
    """Mean number of CPUs that other programs kept busy."""
    watching_cpu_s: float
    """CPU time of Corebeat itself, in seconds."""
    watching_wait_s: Optional[float]
    """Time for which Corebeat itself waited for a CPU, in seconds."""
    observations: int
    observations_due: int
    """Number of observations that the period requests."""
    programs: list[ProgramReport]
    notes: list[str]
    """Remarks, one line each."""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each program: all fields that are not lists.

        Columns are named as the fields; those of `shares` are `shares_user` and so on.
        """
        return frame([{"command": " ".join(p.command), **flat(p)} for p in self.programs])


@dataclass(frozen=True)
class Profile:
    """Measurements of a short run. Rates are per second of CPU time, shares from 0 to 1."""

    cpu_util: float
    lock: Optional[float]
    spin: Optional[float]
    voluntary_rate: Optional[float]
    migration_rate: Optional[float]
    progress: Optional[float]
    """Work per second, in a unit that is valid within one search only."""


@dataclass(frozen=True)
class Trial:
    """The outcome of a short run: a profile, or the reason of a failure."""

    ran: Optional[Profile] = None
    failed: Optional[str] = None


@dataclass(frozen=True)
class Row:
    """One thread count of a search."""

    threads: int
    serial_s: float
    """Time until the program had its threads, in seconds."""
    window_s: float
    """Length of the observation, in seconds."""
    trial: Trial
    others_busy: Optional[float]
    """CPUs that other programs kept busy."""
    repeated: int
    """Number of disturbed runs with this count."""
    verdict: str
    """Why the search went on or stopped."""


@dataclass(frozen=True)
class Oversubscription:
    """The peak of the time for the same work where threads exceed the CPUs."""

    at: int
    before: int
    others_min: int
    others_max: int
    height: float


@dataclass(frozen=True)
class Comparison:
    """Paired runs of the program as it is and with the chosen settings."""

    pairs_s: list[tuple[float, float]]
    """For each pair, the times as it is and with the chosen settings, in seconds."""
    as_is_s: float
    chosen_s: float
    ratio: float
    """Median of the ratios of the pairs: time with the chosen settings by time as it is."""
    interval: tuple[float, float]
    """Confidence interval of the ratio."""
    coverage: float
    difference: Optional[str]
    """`shorter` or `longer` for the chosen settings; `None` if no difference was shown."""


@dataclass(frozen=True)
class Tuned:
    """The result of a search for the best thread count."""

    command: list[str]
    cpus: int
    rows: list[Row]
    """The thread counts of the last search, in order."""
    best: Optional[int]
    """The best thread count; `None` if the program failed with every count."""
    reason: str
    """Why the search stopped."""
    search_s: float
    oversubscription: Optional[Oversubscription]
    notes: list[str]
    run: Optional[Report]
    """The report of the full run."""
    search_share: Optional[float]
    """Part of the search in the total time."""
    comparison: Optional[Comparison]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each thread count of the search."""
        rows = []
        for row in self.rows:
            ran = {} if row.trial.ran is None else flat(row.trial.ran)
            rows.append({**flat(row), **ran, "failed": row.trial.failed})
        columns = {name: None for row in rows for name in row if not name.startswith("trial")}
        return frame(rows, columns=list(columns))


def run(
    command: Union[Sequence[Argument], Sequence[Sequence[Argument]]],
    *,
    policy: str = "auto",
    options: Sequence[str] = (),
    **popen: Any,
) -> Report:
    """Runs a program under a policy until it ends, and returns the report.

    `command` is the program with its arguments, or a list of such lists for several programs, which
    need the policy `auto`, `coscheduling`, `adapt` or `none`.
    `options` are further options of `corebeat run`, such as `["--cpus", "0-3"]`. All other keywords
    are those of `subprocess.Popen`, such as `cwd`, `env`, `stdin` and `stdout`; the output can go to
    a file, and not to a pipe.

    The program may fail: see `Report.ended`. Raises `corebeat.Error` if Corebeat fails; the line on
    standard error has the reason.
    """
    _check(popen)
    programs = _programs(command)
    with tempfile.TemporaryDirectory(prefix="corebeat-") as folder:
        file = os.path.join(folder, "report.json")
        arguments = ["run", "--policy", policy, "--report", "json", "--report-file", file]
        status, _, _ = execute([*arguments, *options, "--", *programs], **popen)
        try:
            with open(file, encoding="utf-8") as report:
                text = report.read()
        except FileNotFoundError:
            text = ""
    if not text:
        raise Error(_failure("run", status))
    return build(Report, json.loads(text))


def tune(
    command: Sequence[Argument],
    *,
    policy: str = "auto",
    env_names: Sequence[str] = (),
    min_threads: Optional[int] = None,
    max_threads: Optional[int] = None,
    step: Optional[int] = None,
    search_only: bool = False,
    repeat: Optional[int] = None,
    options: Sequence[str] = (),
    **popen: Any,
) -> Tuned:
    """Searches for the best thread count of a program, and runs it in full with that count.

    The count replaces `{threads}` in the arguments, and is the value of the variables `env_names`.
    `min_threads`, `max_threads` and `step` bound the search; `search_only` omits the full run;
    `repeat` compares the program as it is with the chosen settings, by that number of runs of each.
    `options` are further options of `corebeat tune`. All other keywords are those of
    `subprocess.Popen`, except `stdout`: the output of the program goes to standard error.

    Raises `corebeat.Error` if Corebeat fails; the line on standard error has the reason.
    """
    if "stdout" in popen:
        raise ValueError("the output of a tuned program goes to stderr: leave stdout out")
    if popen.get("stderr") == subprocess.STDOUT:
        raise ValueError("the standard output of a search is its result: pass a file as stderr")
    _check(popen)
    arguments = ["tune", "--json", "--policy", policy]
    for name, value in [
        ("--min", min_threads),
        ("--max", max_threads),
        ("--step", step),
        ("--repeat", repeat),
    ]:
        if value is not None:
            arguments += [name, str(value)]
    for variable in env_names:
        arguments += ["--env", variable]
    if search_only:
        arguments.append("--search-only")
    programs = _programs(command)
    status, printed, _ = execute(
        [*arguments, *options, "--", *programs], stdout=subprocess.PIPE, **popen
    )
    if not printed:
        raise Error(_failure("tune", status))
    return build(Tuned, json.loads(printed))


def _check(popen: dict[str, Any]) -> None:
    """Raises `ValueError` for keywords that would discard output, and for a shell."""
    if popen.get("shell"):
        raise ValueError("the command is no text for a shell: write ['sh', '-c', text]")
    if subprocess.PIPE in (popen.get("stdout"), popen.get("stderr")):
        raise ValueError("a run does not return output: pass a file")
    for name in ("text", "encoding", "errors", "universal_newlines"):
        if name in popen:
            raise ValueError(f"a run does not return output, which '{name}' is for: leave it out")


_WORD = (str, bytes, os.PathLike)


def _programs(command: Any) -> list[str]:
    """The arguments after `--`, with `--` between programs."""
    if isinstance(command, (str, bytes)):
        raise ValueError("the command is a text: write a list of the program and its arguments")
    several = [command] if not command or isinstance(command[0], _WORD) else command
    words: list[str] = []
    for program in several:
        if not program:
            raise ValueError("the command is empty: write the program and its arguments")
        words += ["--"] if words else []
        for argument in program:
            word = os.fsdecode(argument)
            # Corebeat removes one backslash from an argument that would separate programs.
            words.append("\\" + word if word.lstrip("\\") == "--" else word)
    return words


def _failure(name: str, status: int) -> str:
    ended = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"corebeat {name} ended with {ended} and without a report: see its line on standard error"
