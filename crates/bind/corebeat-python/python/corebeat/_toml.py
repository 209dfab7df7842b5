"""Writes dictionaries as TOML, which the Python library can only read, and from 3.11 on."""

import json
from collections.abc import Mapping
from typing import Any

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def dumps(table: Mapping[str, Any]) -> str:
    """The text of a table, one key a line. Keys whose value is `None` are left out.

    Raises `TypeError` for a value that TOML does not have.
    """
    return "".join(f"{_key(k)} = {_value(v, k)}\n" for k, v in table.items() if v is not None)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the key {key!r} is no text: TOML has no other keys")
    return key if key and _BARE.issuperset(key) else _text(key)


def _text(text: str) -> str:
    # Strings of JSON are strings of TOML, except for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Mapping):
        parts = (f"{_key(k)} = {_value(v, f'{path}.{k}')}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(parts) + " }"
    # Arrays of NumPy, too, and their numbers.
    if hasattr(value, "tolist"):
        return _value(value.tolist(), path)
    if isinstance(value, (list, tuple, range)):
        return "[" + ", ".join(_value(v, f"{path}[{i}]") for i, v in enumerate(value)) + "]"
    raise TypeError(f"{path} is a {type(value).__name__}: TOML has numbers, texts, lists and tables")
