"""Claims and the executor, without a daemon: the claims of this process share its CPUs."""

import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref

import pytest

import corebeat
from corebeat.claim import Claim, ThreadPools, claim

CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="claims share at least two CPUs")
WAIT_S = 60


@pytest.fixture(autouse=True)
def affinity():
    yield
    os.sched_setaffinity(0, CPUS)


def in_child(run):
    """Runs a function in a child of fork, and returns the exit status of the child."""
    child = os.fork()
    if child == 0:
        signal.alarm(WAIT_S)
        try:
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_claim_has_exclusive_cpus_until_its_end():
    with claim(cpus=len(CPUS)) as c:
        assert c.cpus == tuple(CPUS)
        assert repr(c) == f"Claim(cpus={c.cpus})"
        assert c.retreat() == c.cpus and len(c.cpus) == 1
        assert c.resize() == tuple(CPUS)
        assert not c.poll()
    assert c.cpus == ()
    with pytest.raises(corebeat.Error, match="has ended: begin another"):
        c.poll()
    c.close()


def test_impossible_requests_are_value_errors():
    for arguments in [
        {"cpus": 1, "min_cpus": 2},
        {"cpus": 0},
        {"cpus": -1},
        {"min_cpus": -1},
        {"numa": "everywhere"},
        {"within": [100_000]},
        {"within": [8191]},
    ]:
        with pytest.raises(ValueError) as raised:
            claim(**arguments)
        assert "\n" not in str(raised.value)
    with claim(within=CPUS[:1], numa="compact") as c:
        assert c.cpus == tuple(CPUS[:1])


def test_claims_beyond_the_limit_are_errors():
    claims = []
    with pytest.raises(corebeat.Error, match="limit of 16"):
        while True:
            claims.append(Claim())
    [c.close() for c in claims]


@needs_two_cpus
def test_claim_follows_requests_of_other_claims():
    shrunk, grown = threading.Event(), threading.Event()
    with claim(cpus=len(CPUS)) as first:

        @first.on_resize
        def resized(cpus):
            if len(cpus) < len(CPUS):
                shrunk.set()

        with claim(cpus=1) as second:
            assert shrunk.wait(WAIT_S)
            second.on_resize(lambda cpus: grown.set())
            assert second.cpus or grown.wait(WAIT_S)
            assert not set(first.cpus) & set(second.cpus)


def test_callback_may_change_the_claim_and_its_exception_passes():
    seen = []
    with claim(cpus=1) as c:

        def failing(cpus):
            seen.append(cpus)
            c.poll()
            raise KeyError(cpus)

        c.on_resize(failing)
        if len(CPUS) > 1:
            with pytest.raises(KeyError):
                c.resize()
            assert seen == [c.cpus]


@needs_two_cpus
def test_exception_of_a_callback_does_not_prevent_the_others():
    seen = []
    with claim(cpus=1) as c:
        for number in range(3):

            @c.on_resize
            def failing(cpus, number=number):
                seen.append(number)
                raise KeyError(number)

        with pytest.raises(KeyError, match="0"):
            c.resize()
        assert seen == [0, 1, 2]


@needs_two_cpus
def test_callback_that_changes_the_claim_is_the_last_with_the_old_cpus():
    seen = []
    with claim(cpus=1) as c:

        @c.on_resize
        def shrinks(cpus):
            if len(cpus) > 1:
                assert c.retreat() == c.cpus

        c.on_resize(seen.append)
        assert c.resize() == c.cpus
        assert seen == [c.cpus] and len(c.cpus) == 1


def test_dropped_claim_returns_its_cpus():
    c = claim()
    gone = weakref.ref(c)
    del c
    gc.collect()
    assert gone() is None, "the thread of a claim must not keep it"
    with claim() as c:
        assert c.cpus == tuple(CPUS)


def test_child_of_fork_has_no_cpu_of_its_parent():
    with claim() as c:

        def child():
            nonlocal c
            assert c.cpus == ()
            with pytest.raises(corebeat.Error, match="belongs to the parent"):
                c.poll()
            c.close()
            del c

        assert in_child(child) == 0
        assert c.cpus == tuple(CPUS)


@needs_two_cpus
def test_child_of_fork_has_locks_of_its_own():
    begun, end = threading.Event(), threading.Event()
    with claim(cpus=2) as c:
        c.on_resize(lambda cpus: (begun.set(), end.wait(WAIT_S)))
        thread = threading.Thread(target=c.retreat)
        thread.start()
        assert begun.wait(WAIT_S)

        def child():
            c.on_resize(print), c.remove_on_resize(print)
            with c._lock:
                c.close()

        status = in_child(child)
        end.set()
        thread.join()
        assert status == 0


def test_pin_restricts_the_thread():
    with claim(cpus=1) as c:
        c.pin()
        assert tuple(os.sched_getaffinity(0)) == c.cpus


def test_unpin_ends_the_restriction():
    with claim(cpus=1) as c:
        c.pin()
        c.unpin()
        assert os.sched_getaffinity(0) == set(CPUS)


@needs_two_cpus
def test_end_of_a_claim_unpins_its_threads():
    pinned, end, unpinned = threading.Event(), threading.Event(), []
    c = claim(cpus=1)

    def work():
        c.pin()
        pinned.set()
        assert end.wait(WAIT_S)
        unpinned.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    assert pinned.wait(WAIT_S)
    c.pin()
    c.close()
    end.set()
    thread.join()
    assert [*unpinned, os.sched_getaffinity(0)] == [set(CPUS)] * 2


@needs_two_cpus
def test_claim_that_is_deleted_unpins_its_threads():
    c = claim(cpus=1)
    c.pin()
    assert os.sched_getaffinity(0) == set(c.cpus)
    del c
    gc.collect()
    assert os.sched_getaffinity(0) == set(CPUS)


@needs_two_cpus
def test_end_of_a_claim_keeps_an_affinity_that_it_has_not_set():
    with claim(cpus=1) as first, claim(cpus=1) as second:
        first.pin()
        second.pin()
        own = first.cpus
        first.close()
        assert os.sched_getaffinity(0) == set(second.cpus)
        os.sched_setaffinity(0, own)
    assert os.sched_getaffinity(0) == set(own)


@needs_two_cpus
def test_end_of_a_claim_unpins_the_threads_of_an_executor():
    c = claim(cpus=1)
    with corebeat.Executor(claim=c) as executor:
        assert executor.submit(os.sched_getaffinity, 0).result(WAIT_S) == set(c.cpus)
        c.close()
        assert executor.submit(os.sched_getaffinity, 0).result(WAIT_S) == set(CPUS)


def test_claim_that_has_ended_cannot_be_entered():
    with claim(cpus=1) as c:
        pass
    with pytest.raises(corebeat.Error, match="has ended: begin another"), c:
        pass


def test_only_functions_are_called_after_changes():
    with claim(cpus=1) as c, pytest.raises(TypeError, match="not a int"):
        c.on_resize(3)


def test_executor_is_one_of_concurrent_futures():
    with corebeat.Executor() as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert list(executor.map(lambda n: n * n, range(100))) == [n * n for n in range(100)]
        future = executor.submit(divmod, 7, 0)
        assert isinstance(future.exception(WAIT_S), ZeroDivisionError)
        done, _ = concurrent.futures.wait([executor.submit(pow, 2, n) for n in range(9)])
        assert sum(future.result() for future in done) == 511
        assert executor.max_workers == len(CPUS)
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(print)
    assert executor.claim.cpus == ()


def test_threads_of_the_executor_run_on_the_claim():
    with claim(cpus=1) as c:
        with corebeat.Executor(claim=c) as executor:
            assert executor.submit(os.sched_getaffinity, 0).result(WAIT_S) == set(c.cpus)
        assert len(c.cpus) == 1, "the executor does not end a claim of its caller"


@needs_two_cpus
def test_threads_move_when_the_claim_changes():
    with claim(cpus=2) as c, corebeat.Executor(claim=c) as executor:
        begun, end = threading.Event(), threading.Event()

        def affinity():
            begun.set()
            assert end.wait(WAIT_S)
            return os.sched_getaffinity(0)

        future = executor.submit(affinity)
        assert begun.wait(WAIT_S)
        c.retreat()
        end.set()
        assert future.result(WAIT_S) == set(c.cpus) and len(c.cpus) == 1


def test_claim_releases_an_executor_that_has_ended():
    with claim(cpus=1) as c:
        executor = corebeat.Executor(claim=c)
        executor.submit(int).result(WAIT_S)
        executor.shutdown()
        gone = weakref.ref(executor)
        del executor
        gc.collect()
        assert gone() is None
        c.resize()


@needs_two_cpus
def test_pool_follows_the_claim():
    with claim(cpus=2) as c, corebeat.Executor(claim=c) as executor:
        both = threading.Barrier(2)
        waits = [executor.submit(both.wait, WAIT_S) for _ in range(2)]
        assert sorted(future.result(WAIT_S) for future in waits) == [0, 1]
        c.retreat()
        assert executor.max_workers == 1
        assert sum(executor.map(int, "1" * 100)) == 100
        # The second thread ends without a further call.
        threads = [t for t in threading.enumerate() if t.name.startswith("corebeat-")]
        while sum(thread.is_alive() for thread in threads) > 1:
            threads[0].join(0.001), threads[-1].join(0.001)
        # A call that waits gets a thread when the claim grows.
        begun, end = threading.Event(), threading.Event()

        def blocking():
            begun.set()
            return end.wait(WAIT_S)

        blocked = executor.submit(blocking)
        assert begun.wait(WAIT_S)
        later = executor.submit(end.set)
        c.resize(2)
        assert later.result(WAIT_S) is None and blocked.result(WAIT_S)


@needs_two_cpus
def test_callback_may_shut_down_an_executor():
    with claim(cpus=2) as c:
        executor = corebeat.Executor(claim=c)
        executor.submit(int).result(WAIT_S)
        c.on_resize(lambda cpus: executor.shutdown())
        c.retreat()
        with pytest.raises(RuntimeError, match="shut down"):
            executor.submit(int)


def test_thread_that_cannot_start_is_not_counted(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    executor, ran = corebeat.Executor(cpus=1), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(ran.append, "refused")
    assert executor.submit(int).result(WAIT_S) == 0 and ran == []
    executor.shutdown()
    assert executor.claim.cpus == ()


@needs_two_cpus
def test_calls_run_on_the_threads_that_exist(monkeypatch):
    with claim(cpus=2) as c, corebeat.Executor(claim=c) as executor:
        begun, end = threading.Event(), threading.Event()
        executor.submit(lambda: (begun.set(), end.wait(WAIT_S)))
        assert begun.wait(WAIT_S)

        def refused(self):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            later = executor.submit(int)
            c.retreat(), c.resize(2)
        end.set()
        assert later.result(WAIT_S) == 0


def test_shutdown_cancels_calls_that_have_not_begun():
    with claim(cpus=1) as c:
        executor = corebeat.Executor(claim=c)
        begun, end = threading.Event(), threading.Event()
        first = executor.submit(lambda: (begun.set(), end.wait(WAIT_S)))
        assert begun.wait(WAIT_S)
        second = executor.submit(print)
        executor.shutdown(wait=False, cancel_futures=True)
        assert concurrent.futures.wait([second], WAIT_S).done == {second}
        end.set()
        assert first.result(WAIT_S) and second.cancelled()
        executor.shutdown()


def test_result_of_a_call_does_not_outlive_its_future():
    class Result:
        pass

    with corebeat.Executor(cpus=1) as executor:
        gone = weakref.ref(executor.submit(Result).result(WAIT_S))
        # The next call of the same thread.
        assert executor.submit(lambda: gone() is None).result(WAIT_S)


def test_future_whose_result_is_set_by_its_user_does_not_end_the_thread():
    with corebeat.Executor(cpus=1) as executor:
        begun, end = threading.Event(), threading.Event()
        running = executor.submit(lambda: (begun.set(), end.wait(WAIT_S)))
        assert begun.wait(WAIT_S)
        ran = []
        waiting = executor.submit(ran.append, 1)
        running.set_result(5), waiting.set_result(6)
        end.set()
        assert executor.submit(int).result(WAIT_S) == 0
        assert (running.result(), waiting.result(), ran) == (5, 6, [])


def test_invalid_arguments_of_the_executor():
    with pytest.raises(ValueError, match="threads_per_task"):
        corebeat.Executor(threads_per_task=0)
    with pytest.raises(ValueError, match="invalid number -1"):
        corebeat.Executor(cpus=-1)
    with claim(cpus=1) as c, pytest.raises(ValueError, match="leave out"):
        corebeat.Executor(1, claim=c)


def test_native_thread_pools_follow():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    numpy = pytest.importorskip("numpy")
    numpy.ones((2, 2)) @ numpy.ones((2, 2))

    def pools():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}

    before = pools()
    with claim(cpus=1, threadpools=True) as c:
        assert pools() == {1}
        c.resize(len(CPUS))
        assert len(CPUS) == 1 or pools() == {len(CPUS)}
        c.retreat()
        assert len(CPUS) == 1 or pools() == {1}
    assert pools() == before
    with corebeat.Executor(threads_per_task=len(CPUS)) as executor:
        assert executor.max_workers == 1 and pools() == {len(CPUS)}
        executor.submit(int).result(WAIT_S)
    assert pools() == before


def test_native_thread_pools_are_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with corebeat.Executor() as executor:
        assert executor.submit(int).result(WAIT_S) == 0


def test_newest_limit_of_native_thread_pools_counts():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    numpy = pytest.importorskip("numpy")
    numpy.ones((2, 2)) @ numpy.ones((2, 2))

    def pools():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}

    def limited(threads):
        pools = ThreadPools()
        pools.limit(threads)
        return pools

    before = pools()
    first, second = limited(3), limited(2)
    first.limit(4)
    assert pools() == {2}
    second.restore()
    assert pools() == {4}
    second.limit(1)
    third = limited(1)
    first.restore()
    assert pools() == {1}
    third.restore()
    assert pools() == before
    with pytest.raises(ValueError):
        corebeat.Executor(0, threads_per_task=3)
    assert pools() == before


def test_forgotten_executor_does_not_block_the_end_of_python():
    code = "import corebeat; e = corebeat.Executor(); f = e.submit(print, 'done')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=WAIT_S)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, b"done\n", b"")


def test_child_of_fork_cannot_use_an_executor_of_its_parent():
    with corebeat.Executor(cpus=1) as executor:
        begun, end = threading.Event(), threading.Event()
        blocked = executor.submit(lambda: (begun.set(), end.wait(WAIT_S)))
        assert begun.wait(WAIT_S)

        def child():
            with pytest.raises(RuntimeError, match="shut down"):
                executor.submit(int)
            executor.shutdown()
            with corebeat.Executor(cpus=1) as own:
                assert own.submit(int).result() == 0

        status = in_child(child)
        end.set()
        assert blocked.result(WAIT_S) and status == 0
