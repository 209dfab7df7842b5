"""Heartbeats: a program reports its progress and its goals, and reads its rates.

A group of heartbeats has a number, which its user chooses. Threads of one or more processes beat
for it. A monitor measures the rates: the daemon, if `corebeat daemon` runs, or else this process.

    from corebeat.heartbeat import Goal, Group, beat

    frames = Group(7)
    frames.goal = Goal(rate_min=20)  # beats per second
    for frame in video:
        with beat(frames):
            render(frame)
    print(frames.status().window_rate)
"""

import functools
import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, cast

from . import _native
from ._function import check, in_class, is_of, name

__all__ = ["Goal", "Group", "Status", "beat"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

os.register_at_fork(after_in_child=_native.detach_after_fork)


@dataclass(frozen=True)
class Goal:
    """The target heart rate of a group. Raises `ValueError` for an invalid one."""

    rate_min: Optional[float] = None
    """Minimum, in beats per second."""
    rate_max: Optional[float] = None
    """Maximum, in beats per second."""
    window: int = 10
    """Number of samples over which the window rate is measured, 1 to 1024."""
    hold: bool = False
    """Whether the group is kept below its maximum even if no other program needs the CPUs."""

    def __post_init__(self) -> None:
        _native.check_goal((self.rate_min, self.rate_max, self.window, self.hold))


@dataclass(frozen=True)
class Status:
    """The measurements of a group."""

    goal: Goal
    """The target of the group."""
    beats: int
    """Beats of all threads, including threads that have ended."""
    members: int
    """Number of threads that beat for the group."""
    samples: int
    """Number of samples. Ten samples are taken in a second, unless `period_s` differs."""
    global_rate: float
    """Beats per second since the group was created; 0 before the first sample."""
    window_rate: float
    """Beats per second over the window of the goal."""


class Group(_native.Group):
    """A group of heartbeats.

    `number` identifies the group among those of its user. `owner` is the number of another user
    whose group is meant. `mode` sets the permissions of other users: `0o600` for none, plus `0o4`
    to let them read, plus `0o2` to let them beat. `period_s` is the time between two samples if no
    daemon runs, 0.001 to 10 seconds; the default is 0.1.

    A thread beats for one group at a time: `detach` it before it beats for another group. Any
    number of groups can be read. Both ends by themselves: the thread detaches when it ends, and the
    reading when the object is deleted. After a fork the child attaches anew with its next call.
    Objects with the same number and owner are equal.

    Each method raises `ValueError` for invalid arguments, `OSError` if the system refuses, and
    `corebeat.Error` otherwise, for instance if the thread beats for another group.
    """

    # The methods `beat`, `attach`, `detach` and `close` are native, without a call in between.

    @property
    def goal(self) -> Goal:
        """The goal of the group. Setting it attaches the calling thread to the group."""
        return Goal(*self.read()[0])

    @goal.setter
    def goal(self, goal: Goal) -> None:
        if not isinstance(goal, Goal):
            raise TypeError(f"the goal {goal!r} is no Goal: write Goal(), or Goal(rate_min=20)")
        self.set_goal((goal.rate_min, goal.rate_max, goal.window, goal.hold))

    def status(self) -> Status:
        """The current measurements. A beat is counted at most one sample after its emission."""
        goal, beats, members, samples, global_rate, window_rate = self.read()
        return Status(Goal(*goal), beats, members, samples, global_rate, window_rate)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return (self.number, self.owner) == (other.number, other.owner)

    def __hash__(self) -> int:
        return hash((self.number, self.owner))

    def __repr__(self) -> str:
        return f"Group({self.number}, owner={self.owner})"


class beat(_native.Beat):
    """Emits `n` heartbeats for `group` after each completion of a block or of a function.

        with beat(frames):
            render(frame)

        @beat(frames)
        def render(frame): ...

    A block or call that raises an exception emits nothing. The decorator accepts coroutine
    functions too; it refuses generators, whose calls do not run their bodies. `Group.beat` emits at
    once.
    """

    # The methods of the block are native.
    if TYPE_CHECKING:

        def __enter__(self) -> Group: ...

    def __call__(self, function: _Function) -> _Function:
        method = in_class(function, self)
        if method is not None:
            return cast(_Function, method)
        check(function, "beat(group)")
        emit = self.group.beat if self.n == 1 else functools.partial(self.group.beat, self.n)

        if is_of(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            raise TypeError(
                f"cannot count the calls of the generator {name(function)}: write "
                "'with beat(group):' in its body"
            )
        if is_of(function, inspect.iscoroutinefunction):

            @functools.wraps(function)
            async def awaits(*args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                emit()
                return result

            return cast(_Function, awaits)

        @functools.wraps(function)
        def calls(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            emit()
            return result

        return cast(_Function, calls)
