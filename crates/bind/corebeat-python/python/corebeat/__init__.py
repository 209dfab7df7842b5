"""Runtime support for multicore machines.

Corebeat observes what the threads of programs do, decides what to change, and changes it. This
package contains the program `corebeat` as well.

- `corebeat.heartbeat`: a program reports its progress and goals, and reads its rates.
- `corebeat.claim` and `corebeat.Executor`: a program requests CPUs for a phase, and its pool of
  threads follows.
- `corebeat.net`: run S-Net networks whose boxes are Python functions.
- `corebeat.probe`: record the calls of functions and blocks in a trace.
- `corebeat.sim`: run programs on simulated machines.
- `corebeat.trace`: read the events and calls of traces, and record events.
- `corebeat.run` and `corebeat.tune`: run programs under a policy, and read the report.
"""

from . import claim, heartbeat, net, probe, sim, trace
from ._executor import Executor
from ._native import Error
from ._program import find_program
from ._run import Report, Tuned, run, tune

__all__ = [
    "Error",
    "Executor",
    "Report",
    "Tuned",
    "claim",
    "find_program",
    "heartbeat",
    "net",
    "probe",
    "run",
    "sim",
    "trace",
    "tune",
]
