"""A run kept as a file: TOML whose keys are the flags of the verb, without their dashes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode._files import reading, replacing, writing
from discode.errors import InputError, lookup, require, shortened

_NOT_KEPT = ("--save-config", "--dry-run")


def read_config(context: Any, path: Path) -> None:
    """Make the values of a file the defaults of the verb's flags: typed flags replace them."""
    if sys.version_info >= (3, 11):
        toml = importlib.import_module("tomllib")
    else:
        toml = require("tomli", "bench")
    with reading(path, UnicodeDecodeError, toml.TOMLDecodeError):
        values = toml.loads(path.read_text(encoding="utf-8-sig"))
    flags = _flags(context.command)
    context.default_map = {
        lookup(flags, key, f"key of {path.name}").name: _typed(path, key, value, flags[key])
        for key, value in values.items()
    }


def _typed(path: Path, key: str, value: Any, flag: Any) -> Any:
    """Return a value as the command line would have it, where its type is checked."""
    if flag.is_flag:
        kind, good = "true or false", isinstance(value, bool)
    elif flag.multiple:
        kind, good = "a list of texts", isinstance(value, list) and all(map(_is_word, value))
    else:
        kind, good = "a text or a number", _is_word(value)
    if not good:
        raise InputError(f"{path.name}: {key} must be {kind}, not {shortened(value)}")
    if isinstance(value, list):
        return [*map(str, value)]
    return value if isinstance(value, bool) else str(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def write_config(context: Any, path: Path) -> None:
    """Write the values of the verb's flags, with defaults, as :func:`read_config` reads them."""
    values: dict[str, Any] = {}
    for key, flag in _flags(context.command).items():
        value = context.params[flag.name]
        if isinstance(value, list | tuple):
            value = [*map(str, value)]
        if not (value is None or value is False or value == []):
            values[key] = value if isinstance(value, int | float | list) else str(value)
    with replacing(path) as temp, writing(path, UnicodeEncodeError):
        temp.write_text(to_toml(values), encoding="utf-8")


def to_toml(values: Mapping[str, Any]) -> str:
    """Write texts, numbers, true, false and lists of them as TOML.

    >>> to_toml({"metric": ["cider", "clips"], "seed": 0})
    'metric = ["cider", "clips"]\\nseed = 0\\n'
    """
    return "".join(f"{key} = {_cell(value)}\n" for key, value in values.items())


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, float):
        return repr(value)
    # JSON's texts are TOML's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flags(command: Any) -> dict[str, Any]:
    """Find the flags that a file can have, by their long names."""
    long = {max(flag.opts, key=len): flag for flag in command.params if not flag.is_eager}
    return {name[2:]: flag for name, flag in long.items() if name not in _NOT_KEPT}
