"""Traces: read the events and calls of any trace, and record events of this program.

    import corebeat.trace

    for event in corebeat.trace.open("bank.cbt"):
        print(event.time_ns, event.kind, event.fields)

Programs in Rust record traces with the crates corebeat-trace and corebeat-probe. A Python program
records one with `record`, `Mark` and `corebeat.probe`. The program `corebeat trace` draws and
converts traces, for instance for Perfetto.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from . import _native
from ._native import Mark
from ._program import frame

__all__ = [
    "Call",
    "Ending",
    "Event",
    "Kind",
    "Mark",
    "Process",
    "Recording",
    "Summary",
    "Thread",
    "Trace",
    "open",
    "record",
]

Path = Union[str, "os.PathLike[str]"]

# Events that are read at a time, without the global interpreter lock.
_BATCH = 1024


@dataclass(frozen=True)
class Process:
    """The recorded process."""

    pid: int
    program: str
    counter: str
    """The counter that times the events."""


@dataclass(frozen=True)
class Thread:
    """A recorded thread."""

    stream: int
    """Its number in the trace."""
    tid: int
    """Its number in the system."""
    name: str


@dataclass(frozen=True)
class Kind:
    """A kind of events."""

    name: str
    fields: tuple[str, ...]
    """The names of the fields."""


@dataclass(frozen=True)
class Ending:
    """The end of the file."""

    state: str
    """`complete`; `unfinished`, if the process was killed or still records; or `damaged`."""
    lost: int
    """Number of events that were lost for lack of room."""
    text: str
    """The same as text, in one line."""


class Event(NamedTuple):
    """An event of a trace."""

    time_ns: int
    """Time in nanoseconds of `CLOCK_MONOTONIC`, which is that of `time.monotonic_ns`."""
    bound_ns: int
    """Largest error of the time, in nanoseconds."""
    real_time_ns: int
    """The same time in nanoseconds since 1970."""
    thread: Thread
    kind: str
    fields: dict[str, Union[int, float, bool, str]]


class Call(NamedTuple):
    """A call that a probe recorded."""

    name: str
    """The function or block, with its path."""
    file: str
    line: int
    """Position in the source file, from 1."""
    parent: Optional[int]
    """The caller: an index in the list of calls."""
    run: int
    """Number of the run that contains the call."""
    on: str
    """The line of execution: `thread`, `task` or `handed_over`, and its number."""
    thread: str
    tid: int
    """The thread that began the call."""
    begin_ns: int
    end_ns: int
    """Times in nanoseconds of `CLOCK_MONOTONIC`."""
    outcome: str
    """`returned`, `panicked` (in Python: ended by an exception), `open` at the end of the trace, or
    `events_lost`."""
    fields: dict[str, str]


class Trace:
    """A trace in a file. Iteration returns its events, sorted by time, any number of times.

    The file must be a regular one, because it is read twice. Raises `OSError` if the file cannot be
    read, and `corebeat.Error` if it is not a trace. A damaged or unfinished trace is read up to its
    last complete packet: see `ending`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        events = _native.Events(path)
        self.process: Process = Process(*events.process())
        self.ending: Ending = Ending(*events.ending())
        self.threads: list[Thread] = [Thread(*thread) for thread in events.threads()]
        self.span_ns: Optional[tuple[int, int]] = events.span_ns()
        """Begin and end, in nanoseconds; `None` without events."""

    def __iter__(self) -> Iterator[Event]:
        events = _native.Events(self._path)
        threads: dict[int, Thread] = {}
        kinds: dict[int, Kind] = {}
        while batch := events.next(_BATCH):
            # The trace declares threads and kinds as they occur.
            threads.update((thread[0], Thread(*thread)) for thread in events.threads())
            kinds.update((n, Kind(name, tuple(of))) for n, name, of in events.kinds())
            for time_ns, bound_ns, real_time_ns, kind, stream, values in batch:
                of = kinds[kind]
                fields = dict(zip(of.fields, values))
                yield Event(time_ns, bound_ns, real_time_ns, threads[stream], of.name, fields)

    def kinds(self) -> list[Kind]:
        """The kinds of all events. Reads the whole trace."""
        events = _native.Events(self._path)
        while events.next(_BATCH):
            pass
        return [Kind(name, tuple(fields)) for _, name, fields in events.kinds()]

    def calls(self) -> list[Call]:
        """The calls that probes recorded, in the order of their begin."""
        found = []
        for (name, file, line), parent, run, on, thread, times, outcome, fields in _native.calls(
            self._path
        ):
            on_text = f"{on[0]} {on[1]}"
            tid, thread_name = thread
            found.append(
                Call(
                    name, file, line, parent, run, on_text, thread_name, tid, *times, outcome,
                    dict(fields),
                )
            )
        return found

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of the events. Each field has a column, which is empty for others.

        Fields named as a column before them begin with `field_`.
        """
        own = ["time_ns", "bound_ns", "stream", "tid", "thread", "kind"]
        rows = []
        for event in self:
            thread = event.thread
            row = [event.time_ns, event.bound_ns, thread.stream, thread.tid, thread.name, event.kind]
            fields = {f"field_{k}" if k in own else k: v for k, v in event.fields.items()}
            rows.append({**dict(zip(own, row)), **fields})
        return frame(rows, columns=None if rows else own)

    def calls_to_pandas(self) -> Any:
        """A `pandas.DataFrame` of the calls, whose index is the number of the call."""
        return frame(self.calls(), columns=list(Call._fields))

    def __repr__(self) -> str:
        return f"Trace({os.fspath(self._path)!r})"


def open(path: Path) -> Trace:
    """Opens a trace."""
    return Trace(path)


@dataclass(frozen=True)
class Summary:
    """Totals of a recorded trace."""

    file_bytes: int
    threads: int
    """Number of threads that emitted events. Declarations of probes count as a thread."""
    lost: int
    """Number of lost events."""


class Recording:
    """A trace that this process records, until `finish` or the end of its `with` block.

    A process records one trace at a time. Raises `OSError` if the file cannot be written, and
    `corebeat.Error` if another trace is being recorded, in this process or in this file.
    """

    def __init__(self, path: Path) -> None:
        self._native = _native.Recording(path)
        self.path: str = os.fspath(self._native.path() or path)
        """The path of the file, with the process ID in place of `{pid}`."""

    def finish(self) -> Optional[Summary]:
        """Writes all events and ends the trace. Returns `None` if it has ended before."""
        totals = self._native.finish()
        return None if totals is None else Summary(*totals)

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def record(path: Path) -> Recording:
    """Begins to record the events of `Mark.emit` and of probes, of all threads, in a file.

        loaded = corebeat.trace.Mark("loaded")
        with corebeat.trace.record("run.cbt"):
            loaded.emit(12.5)
    """
    return Recording(path)
