"""Claims: a program requests exclusive CPUs for a phase, and releases them.

Programs with claims share the CPUs of the host if `corebeat daemon` runs. Without a daemon, the
claims of a process share the CPUs that the process may use.

    from corebeat.claim import claim

    with claim(cpus=4) as c:
        c.on_resize(lambda cpus: print("now on", cpus))
        work(threads=len(c.cpus))

A thread that `pin` has restricted to the CPUs of a claim runs on all CPUs again after the claim.
"""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Callable, Optional, TypeVar

from . import _native

__all__ = ["Claim", "claim"]

_Callback = TypeVar("_Callback", bound=Callable[[tuple[int, ...]], object])


def claim(
    cpus: Optional[int] = None,
    *,
    min_cpus: int = 1,
    numa: Optional[str] = None,
    within: Optional[Iterable[int]] = None,
    threadpools: bool = False,
) -> "Claim":
    """Begins a claim of up to `cpus` CPUs; the default is all CPUs that this process may use.

    No call waits for a CPU: the claim has the CPUs that are free, which may be fewer than
    `min_cpus`, or none. Further CPUs follow when other claims release them. `numa` distributes the
    CPUs over NUMA nodes (`"scatter"`) or takes few nodes (`"compact"`). `within` limits the claim
    to these CPUs. With `threadpools`, the thread pools of native libraries (OpenBLAS, MKL, OpenMP)
    have as many threads as the claim has CPUs, if `threadpoolctl` is installed.

    Raises `ValueError` for an impossible request, `OSError` if the system refuses, and
    `corebeat.Error` if there are too many claims or the daemon does not answer.
    """
    begun = Claim(threadpools=threadpools)
    try:
        begun.resize(cpus, min_cpus=min_cpus, numa=numa, within=within)
    except BaseException:
        begun.close()
        raise
    return begun


class Claim:
    """Exclusive CPUs of this process; `claim` creates it.

    The claim applies requests of other claims by itself, on a thread of its own: it releases
    requested CPUs, accepts granted ones, and calls the functions of `on_resize`. When the daemon
    ends or one starts, the claim moves within about a second. `with` releases all CPUs at the end
    of the block, and unpins the threads that the claim has pinned. In a child of fork, the claim
    has no CPUs, and its calls raise `corebeat.Error`.
    """

    def __init__(self, *, threadpools: bool = False) -> None:
        _remember_affinity()
        self._native = _native.Claim()
        self._is_closed = False
        self._pins = Pins()
        # A claim that is deleted without `close` ends as well.
        weakref.finalize(self, self._pins.release).atexit = False
        self._callbacks: list[Callable[[tuple[int, ...]], object]] = []
        self._renew_locks()
        self._cpus = tuple(self._native.cpus())
        self._pools = ThreadPools() if threadpools else None
        if self._pools is not None:
            self._pools.limit(max(1, len(self._cpus)))
        this = weakref.ref(self)

        def follow() -> None:
            followed = this()
            if followed is None:
                return
            try:
                followed._native.poll()
            except (_native.Error, OSError):
                # The claim has ended since its request, or keeps its CPUs and is polled again after
                # a second.
                return
            followed._changed()

        self._native.on_change(follow)
        _claims.add(self)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs of the claim, in ascending order."""
        return tuple(self._native.cpus())

    def resize(
        self,
        cpus: Optional[int] = None,
        *,
        min_cpus: int = 1,
        numa: Optional[str] = None,
        within: Optional[Iterable[int]] = None,
    ) -> tuple[int, ...]:
        """Requests a total number of CPUs, as `claim` does, and returns the CPUs."""
        if cpus is None:
            cpus = max(min_cpus, os.cpu_count() or 1)
        limit = None if within is None else ",".join(str(int(cpu)) for cpu in within)
        self._native.invade(min_cpus, cpus, numa, limit)
        return self._changed()

    def retreat(self, to: int = 1) -> tuple[int, ...]:
        """Releases all CPUs except this number, at least 1, and returns the CPUs."""
        self._native.retreat(to)
        return self._changed()

    def poll(self) -> bool:
        """Applies pending requests at once. Returns whether the CPUs have changed."""
        changed = self._native.poll()
        self._changed()
        return changed

    def on_resize(self, callback: _Callback) -> _Callback:
        """Calls a function with the CPUs after each change, and returns the function.

        The calls come one at a time, on the thread that changed the claim or on the thread of the
        claim. An exception does not prevent the calls of further functions: the first one is raised
        after them by the method that changed the claim. An exception on the thread of the claim is
        passed to `sys.unraisablehook`. Raises `TypeError` for an object that is no function.
        """
        if not callable(callback):
            raise TypeError(f"on_resize calls a function, not a {type(callback).__name__}")
        with self._callbacks_lock:
            self._callbacks.append(callback)
        return callback

    def remove_on_resize(self, callback: Callable[[tuple[int, ...]], object]) -> None:
        """Calls the function no longer. Has no effect if `on_resize` did not receive it."""
        with self._callbacks_lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def pin(self) -> None:
        """Restricts the calling thread to the present CPUs of the claim, if it has any.

        Call it again after a change of the claim. The end of the claim, or `unpin`, ends the
        restriction. Threads that the thread starts meanwhile, and children of fork, inherit it;
        only `unpin` ends theirs.
        """
        cpus = self.cpus
        if cpus:
            self._pins.pin(threading.get_native_id(), cpus)

    def unpin(self) -> None:
        """Lets the calling thread run on all CPUs that this process may use.

        These are the CPUs of the thread that began the first claim of the process, at that time.
        """
        self._pins.unpin(threading.get_native_id())

    def close(self) -> None:
        """Releases all CPUs, unpins threads, and restores the native thread pools.

        The threads are those that `pin` of this claim has restricted, unless another claim has
        pinned them since or their affinity has been changed otherwise. Further calls raise errors.
        """
        self._is_closed = True
        self._native.close()
        self._cpus = ()
        self._pins.release()
        with self._callbacks_lock:
            self._callbacks.clear()
            pools, self._pools = self._pools, None
        if pools is not None:
            pools.restore()

    def _renew_locks(self) -> None:
        # Held while functions of `on_resize` run, one after the other. Reentrant: a function may
        # change the claim.
        self._lock = threading.RLock()
        # Guards the list. Not held while functions run: a function may wait for a thread that
        # removes another function or closes the claim.
        self._callbacks_lock = threading.Lock()

    def _changed(self) -> tuple[int, ...]:
        """Calls the functions if the CPUs have changed, and returns the CPUs."""
        first: Optional[BaseException] = None
        with self._lock:
            cpus = self.cpus
            if cpus != self._cpus:
                self._cpus = cpus
                with self._callbacks_lock:
                    callbacks, pools = list(self._callbacks), self._pools
                if pools is not None:
                    pools.limit(max(1, len(cpus)))
                for callback in callbacks:
                    try:
                        callback(cpus)
                    except BaseException as error:
                        first = error if first is None else first
                    # The function has changed the claim: all functions have the new CPUs.
                    if self._cpus is not cpus:
                        break
            cpus = self._cpus
        try:
            if first is not None:
                raise first
        finally:
            # The traceback of the exception refers to this frame.
            del first
        return cpus

    def __enter__(self) -> "Claim":
        if self._is_closed:
            raise _native.Error("this claim has ended: begin another one")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Claim(cpus={self.cpus})"


class Pins:
    """The threads that a claim has pinned. The claim that pinned a thread last is its owner."""

    def pin(self, thread: int, cpus: tuple[int, ...]) -> None:
        """Restricts a thread, by its native number, to CPUs. Raises `OSError`."""
        with _pins_lock:
            os.sched_setaffinity(thread, cpus)
            # The system leaves out CPUs that the process may not use.
            _pins[thread] = self, os.sched_getaffinity(thread)

    def unpin(self, thread: int) -> None:
        """Lets a thread run on all CPUs of the process. Raises `OSError`."""
        with _pins_lock:
            os.sched_setaffinity(thread, _affinity)
            _pins.pop(thread, None)

    def release(self) -> None:
        """Unpins all threads of the claim whose affinity is still that of `pin`."""
        with _pins_lock:
            for thread, (owner, cpus) in list(_pins.items()):
                if owner is not self:
                    continue
                _pins.pop(thread, None)
                # The thread may have ended, and another process may use its number.
                if not os.path.exists(f"/proc/self/task/{thread}"):
                    continue
                with contextlib.suppress(OSError):
                    if os.sched_getaffinity(thread) == cpus:
                        os.sched_setaffinity(thread, _affinity)


# The owners and the CPUs of pinned threads, by the native numbers of the threads.
_pins: dict[int, tuple[Pins, set[int]]] = {}
# Reentrant: the collector may end a claim while the thread holds the lock.
_pins_lock = threading.RLock()
# The CPUs that unpinned threads may use; none before the first claim.
_affinity: set[int] = set()


def _remember_affinity() -> None:
    """Reads the CPUs of the calling thread, before the first claim can have pinned it."""
    global _affinity
    _affinity = _affinity or os.sched_getaffinity(0)


class ThreadPools:
    """A limit of the thread pools of native libraries, if `threadpoolctl` is installed.

    All limits of a process apply to the same pools: the limit of the newest owner counts.
    """

    def __init__(self) -> None:
        self._is_restored = False

    def limit(self, threads: int) -> None:
        """Limits each pool of the libraries that are loaded now to this number of threads.

        Has no effect after `restore`.
        """
        with _limits_lock:
            if not self._is_restored:
                _limits[self] = threads
                _apply()

    def restore(self) -> None:
        """Applies the newest limit that remains, or else the numbers before the first limit."""
        with _limits_lock:
            self._is_restored = True
            if _limits.pop(self, None) is not None:
                _apply()


# The numbers of threads, in the order in which their owners began.
_limits: "weakref.WeakKeyDictionary[ThreadPools, int]" = weakref.WeakKeyDictionary()
_limits_lock = threading.Lock()
# The numbers before the first limit.
_original: Any = None


def _apply() -> None:
    """Applies the newest limit. The caller holds the lock."""
    global _original
    try:
        import threadpoolctl
    except ImportError:
        return
    limits = list(_limits.values())
    if limits:
        applied = threadpoolctl.threadpool_limits(limits=limits[-1])
        _original = applied if _original is None else _original
    elif _original is not None:
        _original.restore_original_limits()
        _original = None


_claims: "weakref.WeakSet[Claim]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread of a claim that calls Python while Python ends blocks for ever.
    for begun in list(_claims):
        begun.close()


def _renew_locks() -> None:
    """Replaces locks in a child of fork: a thread that does not exist there may hold them."""
    global _limits_lock, _pins_lock
    _limits_lock = threading.Lock()
    _pins_lock = threading.RLock()
    # The threads of the parent: numbers of threads are unique on the host.
    _pins.clear()
    for inherited in list(_claims):
        inherited._renew_locks()


os.register_at_fork(after_in_child=_renew_locks)
