"""Heartbeats, without a daemon: this process measures."""

import asyncio
import functools
import itertools
import multiprocessing
import os
import threading
import traceback

import pytest

import corebeat
from corebeat.heartbeat import Goal, Group, beat


# No other process has these numbers.
NUMBERS = itertools.count(os.getpid() * 100)


@pytest.fixture
def group():
    """A group with a number of its own, sampled often. The thread is detached afterwards."""
    group_ = Group(next(NUMBERS), period_s=0.001)
    yield group_
    group_.detach()
    group_.close()


def status_after(group, beats):
    """The status when the monitor has counted this number of beats."""
    status = group.status()
    while status.beats < beats:
        status = group.status()
    assert status.beats == beats
    return status


def test_beats_of_all_threads_are_counted(group):
    group.beat()
    group.beat(4)
    group.beat(n=2)

    def other():
        group.beat(10)

    threads = [threading.Thread(target=other) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    status = status_after(group, 37)
    assert status.samples >= 1 and status.global_rate > 0
    # A thread leaves its group shortly after Python regards it as ended.
    while status.members > 1:
        status = group.status()
    assert status.members == 1


def test_goal_is_read_back(group):
    assert group.goal == Goal()
    group.goal = Goal(rate_min=20, rate_max=30.5, window=4, hold=True)
    assert group.goal == Goal(20.0, 30.5, 4, True)
    assert Group(group.number).status().goal == group.goal
    group.goal = Goal()
    assert group.goal == Goal()


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"rate_min": 0}, "invalid rate of 0.0 beats per second"),
        ({"rate_max": float("nan")}, "invalid rate of NaN beats per second"),
        ({"rate_min": 3, "rate_max": 2}, "minimum must not exceed"),
        ({"window": 0}, "invalid window of 0 samples"),
        ({"hold": True}, "without a maximum"),
    ],
)
def test_invalid_goal_is_a_value_error_in_one_line(goal, message):
    with pytest.raises(ValueError, match=message) as raised:
        Goal(**goal)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("goal", [None, 5])
def test_goal_of_another_type_is_a_type_error(group, goal):
    with pytest.raises(TypeError, match=f"the goal {goal} is no Goal: write Goal"):
        group.goal = goal


def test_groups_with_one_number_are_equal():
    assert Group(7) == Group(7, period_s=1) and len({Group(7), Group(7)}) == 1
    assert Group(7) != Group(8) and Group(7) != Group(7, owner=2**31) and Group(7) != 7


def test_invalid_arguments_are_value_errors(group):
    for arguments in [{"mode": 0o777}, {"period_s": -1.0}, {"period_s": float("nan")}]:
        with pytest.raises(ValueError, match="invalid"):
            Group(1, **arguments)
    with pytest.raises(ValueError, match="invalid period"):
        Group(1, period_s=0.0).attach()
    for call in [
        lambda: Group(-1),
        lambda: Group(2**32),
        lambda: Group(1, owner=-1),
        lambda: group.beat(-1),
        lambda: beat(group, -1),
        lambda: Goal(window=-1),
    ]:
        with pytest.raises(ValueError, match="invalid number -?[0-9]+: use"):
            call()
    with pytest.raises(TypeError):
        Group("1")


def test_beat_decorates_functions_only(group):
    for wrong in [3, "render", property(len)]:
        with pytest.raises(TypeError, match="beat.group. decorates functions, not"):
            beat(group)(wrong)


def test_beat_decorates_methods_of_a_class(group):
    class Scene:
        @beat(group)
        @classmethod
        def of_class(cls):
            return cls

        @beat(group)
        @staticmethod
        def of_none():
            return 5

    assert Scene.of_class() is Scene and Scene().of_none() == 5
    status_after(group, 2)


def test_thread_beats_for_one_group_at_a_time(group):
    other = Group(next(NUMBERS))
    other.status(), group.status()  # a group ends with its last member: read both from now on
    group.beat()
    with pytest.raises(corebeat.Error, match="beats for one group"):
        other.beat()
    group.detach()
    other.beat()
    group.detach()  # has no effect: the thread is attached to the other group
    other.beat()
    status_after(other, 2)
    other.detach()
    status_after(group, 1)


def test_group_of_the_same_number_is_the_same(group):
    group.beat()
    Group(group.number, owner=os.geteuid()).beat(2)
    assert status_after(group, 3).members == 1
    assert repr(group) == f"Group({group.number}, owner={os.geteuid()})"


def test_block_emits_unless_it_raises(group):
    for _ in range(3):
        with beat(group) as entered:
            assert entered is group
    with beat(group, 5):
        pass
    with pytest.raises(KeyError):
        with beat(group):
            raise KeyError
    status_after(group, 8)


def test_decorator_counts_calls(group):
    @beat(group, n=2)
    def double(number):
        """Doubles."""
        return number * 2

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    with pytest.raises(TypeError):
        double(None)

    @beat(group)
    async def later():
        status_after(group, 2)
        return 7

    assert asyncio.run(later()) == 7
    status_after(group, 3)

    class Later:
        async def __call__(self):
            status_after(group, 3)

    asyncio.run(beat(group)(Later())())
    status_after(group, 4)

    def generator():
        yield

    class Generates:
        def __call__(self):
            yield

    for function in [generator, functools.partial(generator), Generates()]:
        with pytest.raises(TypeError, match="the generator .*: write"):
            beat(group)(function)


def test_child_of_fork_attaches_anew(group):
    group.beat()
    group.status()
    child = os.fork()
    if child == 0:
        try:
            group.beat(5)
            status_after(group, 5)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert status_after(group, 1).members == 1


def in_worker(number):
    Group(number).beat(3)
    return Group(number).goal == Goal()


def test_processes_of_a_pool_beat(group):
    group.beat()
    for method in ["fork", "spawn"]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(in_worker, (group.number,))
    status_after(group, 1)
