"""Networks in the coordination language S-Net, whose boxes are functions of this process.

    from corebeat.net import Network

    def greet(name, times):
        for _ in range(times):
            yield {"line": f"hello {name}"}

    network = Network("net main { box greet ((name, <times>) -> (line)); } connect greet;",
                      {"greet": greet})
    outcome = network.run([{"name": "you", "<times>": 2}])
    print(outcome.records)

    with network.stream({"name": name, "<times>": 1} for name in sys.stdin) as lines:
        for record in lines:
            print(record["line"])

A record is a dictionary. The key `"name"` is a field, whose value is any object; `"<times>"` is a
tag, an integer of 32 bits with which the network computes; `"<#b>"` is a binding tag. The page
"Networks in S-Net" of the book describes the language.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from . import _native

__all__ = ["Fault", "Network", "Outcome", "Record", "Stream"]

Record = dict[str, Any]

_WORKERS_MAX = 256


@dataclass(frozen=True)
class Fault:
    """Why a record could not continue."""

    entity: str
    """The part that failed, such as `box greet`."""
    message: str
    record: Optional[Record]
    """The record; `None` if the box has consumed it."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    records: list[Record]
    """The output records, in their order."""
    faults: list[Fault]
    """At most 1,000 of the faults."""
    fault_count: int
    kept: int
    """Number of records that waited in synchrocells for a partner that did not come."""


class Stream(Iterator[Record]):
    """The output of a run: an iterator of records, until the network has no more.

    After the last record, the iterator raises the exception of the input, or `corebeat.Error` if a
    fault has stopped the network, or else ends. `close`, or the end of a `with` block, ends the run
    early: the network calls no further functions, and records inside are lost. A stream that is
    deleted ends its run as well, without a wait.
    """

    def __init__(self, native: _native.Stream) -> None:
        self._native = native

    def __next__(self) -> Record:
        record = self._native.next()
        if record is None:
            raise StopIteration
        return record

    @property
    def faults(self) -> list[Fault]:
        """The faults so far, at most 1,000."""
        return [Fault(*fault) for fault in self._native.faults()]

    @property
    def fault_count(self) -> int:
        """Number of faults so far."""
        return self._native.fault_count()

    @property
    def kept(self) -> int:
        """Number of records that waited in synchrocells for a partner that did not come."""
        return self._native.kept()

    def close(self) -> None:
        """Ends the run, and waits until the functions that run have returned."""
        self._native.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Network:
    """A network of a program in S-Net, which runs any number of times.

    `boxes` has a function for each box without code. The function receives the values that the box
    declares, in their order, and returns an output record as a dictionary, several records as an
    iterable of dictionaries (or as a generator), or `None`. An iterable advances as the network
    accepts its records, possibly on several threads in turn. Code of boxes in the program runs as
    in `corebeat net run`. `net` selects a net of the program; the default is the last one.
    `workers` is the number of functions that may run at the same time; the default is the number of
    CPUs. With `on_fault="continue"`, a record whose box raises an exception is lost, and the faults
    list it; with `"stop"`, the run ends with `corebeat.Error` instead, whose `__cause__` is the
    exception, unless several boxes fail at the same time. A network has one run at a time.

    Raises `ValueError` for a mistake in the program, with its place, and for a function without a
    box in the program; `corebeat.Error` for a box without a function.
    """

    def __init__(
        self,
        program: str,
        boxes: Optional[Mapping[str, Callable[..., Any]]] = None,
        *,
        net: Optional[str] = None,
        workers: Optional[int] = None,
        on_fault: str = "stop",
    ) -> None:
        if workers is None:
            workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
        if not 1 <= workers <= _WORKERS_MAX:
            raise ValueError(f"a network cannot have {workers} workers: use 1 to {_WORKERS_MAX}")
        if on_fault not in ("stop", "continue"):
            raise ValueError(f"'{on_fault}' is no reaction to a fault: use 'stop' or 'continue'")
        functions = list((boxes or {}).items())
        for name, function in functions:
            if not callable(function):
                raise TypeError(f"the box {name} is a {type(function).__name__}: pass a function")
        self._native = _native.Network(program, functions, net, workers, on_fault == "stop")
        self.warnings: list[str] = self._native.warnings
        """Places in the program that may not do what their author intends, one line each."""

    def run(self, records: Iterable[Record] = ()) -> Outcome:
        """Runs records through the network, and waits for all outputs.

        Raises the exceptions of the input; `TypeError` or `ValueError` for an input that is no
        record; and `corebeat.Error` if a fault stops the network, or if the network runs already.
        """
        with self.stream(records) as stream:
            return Outcome(list(stream), stream.faults, stream.fault_count, stream.kept)

    def stream(self, records: Iterable[Record] = ()) -> Stream:
        """Begins to run records through the network, and returns its output as an iterator.

        A thread iterates over the records. Each stream of the network has room for 64 of them: the
        thread waits while the caller reads no output. At an early end, the thread requests no
        further record, but a request that waits is not interrupted.

        Raises `TypeError` if the records are not iterable, and `corebeat.Error` if the network runs
        already. All other errors are raised by the iterator.
        """
        return Stream(self._native.stream(records))

    def svg(self) -> str:
        """A drawing of the network."""
        return self._native.svg()

    def _repr_svg_(self) -> str:
        """The drawing, for notebooks."""
        return self.svg()
