"""Functions that decorators receive."""

from typing import Any, Callable


def is_of(function: Callable[..., Any], *kinds: Callable[[object], bool]) -> bool:
    """Whether a function is of one of these kinds, such as `inspect.iscoroutinefunction`.

    An object with the method `__call__` is of the kind of that method.
    """
    candidates = function, getattr(type(function), "__call__", None)
    return any(kind(candidate) for candidate in candidates for kind in kinds)


def name(function: Callable[..., Any]) -> str:
    """The name of a function within its module, or the text of another object."""
    return str(getattr(function, "__qualname__", None) or repr(function))
