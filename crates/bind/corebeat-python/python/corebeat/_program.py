"""The program `corebeat` of this package, and the reading of its JSON."""

import dataclasses
import os
import shutil
import subprocess
import sysconfig
import typing
from typing import Any, Optional, TypeVar, Union

from ._native import Error

_T = TypeVar("_T")

Argument = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def find_program() -> str:
    """The path of the program `corebeat`: of this package, or else the first one in `PATH`.

    Raises `corebeat.Error` if there is none.
    """
    installed = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", _user_scheme())]
    found = shutil.which("corebeat", path=os.pathsep.join(installed)) or shutil.which("corebeat")
    if found is None:
        raise Error(
            "the program corebeat is neither beside this Python nor in PATH: install the wheel of "
            "corebeat, or 'cargo install' the crate corebeat-cli"
        )
    return found


def _user_scheme() -> str:
    """The scheme of `pip install --user`."""
    return f"{os.name}_user"


def execute(arguments: list[str], **popen: Any) -> tuple[int, str, str]:
    """Runs the program, and returns its exit status and what it wrote to standard output and
    standard error, as far as these are pipes. An exception in this thread, such as
    `KeyboardInterrupt`, ends the program by a signal that it handles, so that it undoes its changes.
    """
    with subprocess.Popen([find_program(), *arguments], **popen, text=True) as process:
        try:
            printed, errors = process.communicate()
        except BaseException:
            process.terminate()
            # Reads pipes meanwhile: a program that writes to a full pipe does not end.
            process.communicate()
            raise
    return process.returncode, printed or "", errors or ""


def execute_quietly(arguments: list[str], folder: str) -> str:
    """Runs a command that starts no program of the user, in a folder, and returns what it printed.

    Raises `ValueError` for a wrong command line, and `corebeat.Error` for another failure, with the
    line of the command.
    """
    status, printed, errors = execute(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if status == 0:
        return printed
    lines = errors.strip().splitlines() or [f"corebeat ended with status {status}"]
    # A wrong command line has lines of help after the first one. Other failures end with their line.
    if status == 2:
        raise ValueError(lines[0].removeprefix("error: ").removeprefix("corebeat: "))
    raise Error(lines[-1].removeprefix("corebeat: "))


def build(kind: type[_T], value: Any) -> _T:
    """Builds a dataclass from JSON. Fields that the dataclass lacks are left out.

    Raises `corebeat.Error` if the JSON lacks a field.
    """
    return typing.cast(_T, _build(kind, value))


def _build(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union:
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _build(kind, value)
    if origin is list:
        return [_build(arguments[0], item) for item in value]
    if origin is tuple:
        return tuple(_build(of, item) for of, item in zip(arguments, value))
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return value
    if hasattr(kind, "_of_json"):
        value = kind._of_json(value)
    hints = typing.get_type_hints(kind)
    lacking = [
        field.name
        for field in dataclasses.fields(kind)
        if field.name not in value and field.default is dataclasses.MISSING
    ]
    if lacking:
        raise Error(
            f"the JSON of corebeat lacks '{lacking[0]}': use the program and the package of one "
            "version"
        )
    return kind(**{name: _build(hints[name], value[name]) for name in hints if name in value})


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """The numbers and texts of a dataclass by name. Names within a field begin with its name."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item):
            row.update(flat(item, f"{prefix}{field.name}_"))
        elif not isinstance(item, (list, dict)):
            row[prefix + field.name] = item
    return row


def frame(rows: Any, columns: Optional[list[str]] = None) -> Any:
    """A `pandas.DataFrame` of these rows. Raises `ImportError` without pandas."""
    import pandas

    return pandas.DataFrame(rows, columns=columns)
