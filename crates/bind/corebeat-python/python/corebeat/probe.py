"""Probes: the calls of functions and blocks, with their callers and times, in a trace.

    from corebeat import trace
    from corebeat.probe import probe, switch

    @probe
    def price(article):
        with probe("look up"):
            return catalog[article]

    switch("shop.*")                     # probes are off until they are switched on
    with trace.record("shop.cbt"):
        price("tea")
    print(trace.open("shop.cbt").calls())

The page "Probes" of the book describes the drawings and exports of `corebeat trace`.
"""

import functools
import inspect
import sys
from typing import Any, Callable, TypeVar, Union, cast, overload

from . import _native
from ._function import check, in_class, is_of, name

__all__ = ["Probe", "probe", "switch"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Probe(_native.Probe):
    """A probe: a context manager for blocks, and a decorator for functions.

    `name`, `file` and `line` identify it in traces. A probe stays until the end of the process:
    create one for each place in the code (`probe` does), and use it any number of times, on any
    threads. Raises `corebeat.Error` if the process has 65,536 probes.

    A call that ends by an exception has the outcome `panicked`. A block that contains `yield` or
    `await` may interleave with others of its thread, whose callers are wrong then: decorate the
    function instead. The steps of a decorated coroutine or generator are one call, from the first
    step to the end, whose caller is the call of its first step.
    """

    # The methods of the block are native.

    def __call__(self, function: _Function) -> _Function:
        """Makes each call of a function a call of this probe."""
        method = in_class(function, self)
        if method is not None:
            return cast(_Function, method)
        check(function, "a probe")
        if isinstance(function, type):
            raise TypeError(f"a probe cannot replace a class: decorate {name(function)}.__init__")
        if is_of(function, inspect.isasyncgenfunction):
            raise TypeError(
                f"cannot record the calls of the asynchronous generator {name(function)}: write "
                "'with probe(...):' around code between two yields"
            )
        if is_of(function, inspect.iscoroutinefunction):

            @functools.wraps(function)
            async def awaits(*args: Any, **kwargs: Any) -> Any:
                return await self.steps(function(*args, **kwargs))

            return cast(_Function, awaits)
        if is_of(function, inspect.isgeneratorfunction):

            @functools.wraps(function)
            def generates(*args: Any, **kwargs: Any) -> Any:
                return (yield from self.steps(function(*args, **kwargs)))

            return cast(_Function, generates)

        @functools.wraps(function)
        def calls(*args: Any, **kwargs: Any) -> Any:
            # A block takes longer than this test, even if nothing is recorded.
            if not self.is_on:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return cast(_Function, calls)

    def __repr__(self) -> str:
        return f"Probe({self.name!r})"


# A block in a loop creates its probe once.
_probe_at = functools.cache(Probe)


@overload
def probe(of: str) -> Probe: ...
@overload
def probe(of: _Function) -> _Function: ...
def probe(of: Union[str, _Function]) -> Union[Probe, _Function]:
    """A probe on a function, or on a block with a name.

        @probe
        def price(article): ...

        with probe("look up"):
            ...

    The name of the probe is that of the function, or the given one, after the name of the module:
    `shop.price`. A block that runs often costs less if its probe has a variable.
    """
    if isinstance(of, str):
        caller = sys._getframe(1)
        module = caller.f_globals.get("__name__", "?")
        return _probe_at(f"{module}.{of}", caller.f_code.co_filename, caller.f_lineno)
    method = in_class(of, probe)
    if method is not None:
        return cast(_Function, method)
    check(of, "probe")
    code = getattr(inspect.unwrap(of), "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
    return _probe_at(f"{getattr(of, '__module__', '?')}.{name(of)}", file, line)(of)


def switch(pattern: str, on: bool = True) -> int:
    """Switches all probes whose names match a pattern on or off, in native code as well.

    `*` matches any text, `?` any character. Returns the number of probes that match. The last
    matching pattern also applies to probes that are created later. A call that runs is recorded
    completely or not at all. Raises `ValueError` for an invalid pattern.
    """
    return _native.switch(pattern, on)
