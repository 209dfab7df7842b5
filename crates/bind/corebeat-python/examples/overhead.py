"""Measures the calls of corebeat beside others: nanoseconds per call, best of some rounds.

The best round is the least disturbed one. An empty loop is subtracted. Needs prometheus_client.
"""

import os
import tempfile
import time
import timeit

from prometheus_client import Counter

from corebeat.heartbeat import Group, beat
from corebeat.probe import probe, switch
from corebeat.trace import Mark, record

CALLS, ROUNDS = 100_000, 15

group = Group(1)
frames = beat(group)
counter = Counter("calls", "Calls")
mark = Mark("mark")


def empty() -> None:
    pass


decorated = beat(group)(empty)
off, on = probe("off"), probe("on")
probed_off, probed_on = off(empty), on(empty)
SUBJECTS = {
    "Group.beat()": "group.beat()",
    "Group.beat(2)": "group.beat(2)",
    "with beat(group)": "with frames: pass",
    "a call of a function with @beat": "decorated()",
    "a call of a function": "empty()",
    "Mark.emit()": "mark.emit()",
    "Mark.emit(2.5)": "mark.emit(2.5)",
    "with probe, off": "with off: pass",
    "with probe, on": "with on: pass",
    "a call of a function with @probe, off": "probed_off()",
    "a call of a function with @probe, on": "probed_on()",
    "time.perf_counter_ns()": "time.perf_counter_ns()",
    "prometheus_client Counter.inc()": "counter.inc()",
}


def main() -> None:
    timers = {name: timeit.Timer(code, globals=globals()) for name, code in SUBJECTS.items()}
    timers["loop"] = timeit.Timer("pass")
    best = dict.fromkeys(timers, float("inf"))
    switch("*.on")
    with tempfile.TemporaryDirectory() as folder, record(f"{folder}/overhead.cbt"):
        # The subjects take turns, so that a disturbance affects all of them.
        for _ in range(ROUNDS):
            for name, timer in timers.items():
                best[name] = min(best[name], timer.timeit(CALLS) / CALLS * 1e9)
    loop = best.pop("loop")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    reference = best["time.perf_counter_ns()"] - loop
    for name, ns in best.items():
        print(f"{name:38} {ns - loop:7.1f} ns {(ns - loop) / reference:7.2f} x perf_counter_ns")


if __name__ == "__main__":
    main()
