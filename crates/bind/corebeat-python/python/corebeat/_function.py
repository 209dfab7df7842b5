"""Functions that decorators receive."""

from typing import Any, Callable, Optional


def is_of(function: Callable[..., Any], *kinds: Callable[[object], bool]) -> bool:
    """Whether a function is of one of these kinds, such as `inspect.iscoroutinefunction`.

    An object with the method `__call__` is of the kind of that method.
    """
    candidates = function, getattr(type(function), "__call__", None)
    return any(kind(candidate) for candidate in candidates for kind in kinds)


def check(function: object, decorator: str) -> None:
    """Raises `TypeError` for an object that a decorator of functions cannot decorate."""
    if not callable(function):
        raise TypeError(f"{decorator} decorates functions, not objects of {type(function)}")


def in_class(function: Any, decorate: Callable[[Any], Any]) -> Optional[Any]:
    """Decorates the function of a class method or of a static method; `None` for others."""
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(decorate(function.__func__))
    return None


def name(function: Callable[..., Any]) -> str:
    """The name of a function within its module, or the text of another object."""
    return str(getattr(function, "__qualname__", None) or repr(function))
