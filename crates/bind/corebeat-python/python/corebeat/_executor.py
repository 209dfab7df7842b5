"""An executor of `concurrent.futures` whose pool follows a claim."""

import atexit
import collections
import concurrent.futures
import contextlib
import itertools
import os
import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from typing import Any, Callable, Optional, TypeVar

from .claim import Claim, ThreadPools, claim as begin

__all__ = ["Executor"]

_T = TypeVar("_T")
_Item = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_executors: "weakref.WeakSet[Executor]" = weakref.WeakSet()


class Executor(concurrent.futures.Executor):
    """Runs calls on threads: one for each CPU of a claim, more or fewer when the claim changes.

        with corebeat.Executor(cpus=8) as executor:
            results = list(executor.map(function, items))

    `cpus` is the largest number of CPUs; the default is all. `claim` is an existing claim to
    follow, which the executor does not end. A thread that the claim has no CPU for ends after its
    present call; one thread always remains. Threads run on the CPUs of the claim only.

    `threads_per_task` is the number of CPUs of each call. The pool then has that many threads less,
    and the thread pools of native libraries such as OpenBLAS have that many threads, if
    `threadpoolctl` is installed: calls into NumPy share the claim instead of exceeding it. Import
    such libraries before the executor is created.

    The calls of pure Python code take turns, because of the global interpreter lock. The threads
    keep the executor and its claim until `shutdown`, which the end of the `with` block and the end
    of Python call. In a child of fork, the executor is shut down.
    """

    def __init__(
        self,
        cpus: Optional[int] = None,
        *,
        claim: Optional[Claim] = None,
        threads_per_task: int = 1,
        thread_name_prefix: str = "corebeat",
    ) -> None:
        if claim is not None and cpus is not None:
            raise ValueError("the claim has a number of CPUs: leave out 'cpus' or 'claim'")
        if threads_per_task < 1:
            raise ValueError("a call needs a CPU: write threads_per_task of at least 1")
        self._reset()
        self._is_shut_down = False
        self._numbers = itertools.count()
        self._threads_per_task = threads_per_task
        self._prefix = thread_name_prefix
        self._pools = ThreadPools()
        self._cpus: tuple[int, ...] = ()
        self._owns_claim = claim is None
        self._claim = begin(cpus) if claim is None else claim
        try:
            self._pools.limit(threads_per_task)
            self._claim.on_resize(self._resize)
            self._resize(self._claim.cpus)
        except BaseException:
            self._end()
            raise
        _executors.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._queue: "collections.deque[_Item]" = collections.deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    @property
    def claim(self) -> Claim:
        """The claim that the pool follows."""
        return self._claim

    @property
    def max_workers(self) -> int:
        """The number of threads that the claim permits now."""
        return max(1, len(self._cpus) // self._threads_per_task)

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> "Future[_T]":
        """Schedules a call, and returns its future.

        Raises `RuntimeError` after `shutdown`, or if the system refuses the first thread.
        """
        future: "Future[_T]" = Future()
        item: _Item = (future, fn, args, kwargs)
        with self._condition:
            if self._is_shut_down:
                raise RuntimeError("the executor is shut down: create another one")
            self._queue.append(item)
            try:
                self._start_threads()
            except RuntimeError:
                # The threads that exist run the call.
                if not self._threads:
                    self._queue.remove(item)
                    raise
            self._condition.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no further calls, and ends the threads after the calls that are scheduled.

        With `cancel_futures`, calls that have not begun are cancelled. An own claim ends with the
        last thread.
        """
        with self._condition:
            self._is_shut_down = True
            cancelled = [item[0] for item in self._queue] if cancel_futures else []
            if cancel_futures:
                self._queue.clear()
            threads = list(self._threads)
            self._condition.notify_all()
        for future in cancelled:
            if future.cancel():
                # Threads that wait for several futures regard this one as done from here on.
                _begin(future)
        if not threads:
            self._end()
        elif wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _resize(self, cpus: tuple[int, ...]) -> None:
        with self._condition:
            self._cpus = cpus
            for thread in self._threads:
                # A thread that is about to start has no number, and pins itself.
                if thread.native_id is not None:
                    self._pin(thread.native_id)
            # If the system refuses a thread, those that exist run the calls.
            with contextlib.suppress(RuntimeError):
                self._start_threads()
            self._condition.notify_all()

    def _pin(self, thread: int) -> None:
        """Restricts a thread to the CPUs of the claim, until that ends."""
        # The thread may have ended, or a CPU may have gone offline.
        with contextlib.suppress(OSError):
            if self._cpus:
                self._claim._pins.pin(thread, self._cpus)
            else:
                self._claim._pins.unpin(thread)

    def _start_threads(self) -> None:
        """Starts threads for the calls that wait, as many as the claim permits.

        Raises `RuntimeError` if the system refuses a thread.
        """
        waiting = len(self._queue) - self._idle
        for _ in range(min(waiting, self.max_workers - len(self._threads))):
            thread = threading.Thread(
                target=self._work, name=f"{self._prefix}-{next(self._numbers)}", daemon=True
            )
            # The thread begins with the condition, which the caller holds.
            thread.start()
            self._threads.add(thread)

    def _work(self) -> None:
        with self._condition:
            self._pin(threading.get_native_id())
        while (item := self._next()) is not None:
            _run(*item)
            # The call must not live until the next one.
            del item

    def _next(self) -> Optional[_Item]:
        """Waits for a call. `None` ends the thread."""
        with self._condition:
            while len(self._threads) <= self.max_workers:
                if self._queue:
                    return self._queue.popleft()
                if self._is_shut_down:
                    break
                self._idle += 1
                self._condition.wait()
                self._idle -= 1
            self._threads.discard(threading.current_thread())
            # Another thread may have been notified of a call that this one would have taken.
            self._condition.notify()
            is_last = self._is_shut_down and not self._threads
        if is_last:
            self._end()
        return None

    def _end(self) -> None:
        self._pools.restore()
        self._claim.remove_on_resize(self._resize)
        if self._owns_claim:
            self._claim.close()


def _begin(future: "Future[Any]") -> bool:
    """Whether the call is to run: neither after `cancel`, nor if a user has set the result."""
    try:
        return future.set_running_or_notify_cancel()
    except RuntimeError:
        return False


def _run(
    future: "Future[Any]", fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Runs a call. The result lives in the future only: the frame of this function ends."""
    if not _begin(future):
        return
    # A user may set the result of the future meanwhile.
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
        # The traceback of the exception refers to this frame.
        del future, fn, args, kwargs
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(result)


@atexit.register
def _shut_down_all() -> None:
    for executor in list(_executors):
        executor.shutdown()


def _shut_down_in_child() -> None:
    # The threads of the parent do not exist in a child of fork, and one may hold the lock.
    for executor in list(_executors):
        executor._reset()
        executor._is_shut_down = True


os.register_at_fork(after_in_child=_shut_down_in_child)
