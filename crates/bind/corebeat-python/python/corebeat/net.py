"""Networks in the coordination language S-Net, whose boxes are functions of this process.

    from corebeat.net import Network

    def greet(name, times):
        for _ in range(times):
            yield {"line": f"hello {name}"}

    network = Network("net main { box greet ((name, <times>) -> (line)); } connect greet;",
                      {"greet": greet})
    outcome = network.run([{"name": "you", "<times>": 2}])
    print(outcome.records)

A record is a dictionary. The key `"name"` is a field, whose value is any object; `"<times>"` is a
tag, an integer of 32 bits with which the network computes; `"<#b>"` is a binding tag. The page
"Networks in S-Net" of the book describes the language.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from . import _native

__all__ = ["Fault", "Network", "Outcome", "Record"]

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


class Network:
    """A network of a program in S-Net, which runs any number of times.

    `boxes` has a function for each box without code. The function receives the values that the box
    declares, in their order, and returns an output record as a dictionary, several records as an
    iterable of dictionaries (or as a generator), or `None`. Code of boxes in the program runs as in
    `corebeat net run`. `net` selects a net of the program; the default is the last one. `workers`
    is the number of functions that may run at the same time; the default is the number of CPUs.
    With `on_fault="continue"`, a record whose box raises an exception is lost, and
    `Outcome.faults` lists it; with `"stop"`, `run` raises `corebeat.Error` instead, whose
    `__cause__` is the exception, unless several boxes fail at the same time.

    Raises `ValueError` for a mistake in the program, with its place, and `corebeat.Error` for a box
    without a function.
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

        Raises `TypeError` or `ValueError` for an input that is no record, and `corebeat.Error` if
        a fault stops the network or the network runs already on another thread.
        """
        output, faults, count, kept, has_stopped, cause = self._native.run(list(records))
        outcome = Outcome(output, [Fault(*fault) for fault in faults], count, kept)
        if has_stopped:
            first = outcome.faults[0]
            raise _native.Error(
                f"the network stopped at a fault: {first.entity}: {first.message}; use "
                "on_fault='continue' to continue after faults"
            ) from cause
        return outcome

    def svg(self) -> str:
        """A drawing of the network."""
        return self._native.svg()

    def _repr_svg_(self) -> str:
        """The drawing, for notebooks."""
        return self.svg()
