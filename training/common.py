"""Paths, configuration, and the text that surrounds a caption."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("DISCODE_BUILD", HERE / "build"))
"""Everything that is made lies here; git does not see it."""

END = "<|im_end|>"
START = "<|im_start|>"
STEMS = ("0.", "1.")
"""Each stem is one token of its own: one position tells P("0.") and P("1.")."""


def settings() -> dict[str, Any]:
    """Read config.toml."""
    read: dict[str, Any] = tomllib.loads((HERE / "config.toml").read_text(encoding="utf-8"))
    return read


def config(run: str = "") -> dict[str, Any]:
    """Return the settings, with those that a run of them replaces; its own are in ``run``."""
    return for_run(settings(), run)


def for_run(every: dict[str, Any], run: str) -> dict[str, Any]:
    """Return settings as a run wants them.

    >>> base = {"optim": {"ema": 0.9, "warmup": 5}, "runs": {"a": {"seed": 1, "optim": {"ema": 0}}}}
    >>> for_run(base, "a")
    {'optim': {'ema': 0, 'warmup': 5}, 'run': {'seed': 1}}

    A run may be like another but for what it says itself:

    >>> base["runs"]["b"] = {"like": "a", "seed": 2}
    >>> for_run(base, "b")
    {'optim': {'ema': 0, 'warmup': 5}, 'run': {'seed': 2}}
    """
    merged = {name: value for name, value in every.items() if name != "runs"} | {"run": {}}
    if run and run not in every["runs"]:
        raise SystemExit(f"no run {run!r} in config.toml; there are {', '.join(every['runs'])}")
    own = dict(every["runs"].get(run, {}))
    if "like" in own:
        own = every["runs"][own.pop("like")] | own
    for name, value in own.items():
        if name in merged:
            merged[name] = merged[name] | value
        else:
            merged["run"][name] = value
    return merged


def ragged(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Pack lists of ids into one array and its offsets (n + 1,)."""
    flat = np.array([i for row in rows for i in row], np.int32)
    return flat, np.cumsum([0, *map(len, rows)]).astype(np.int64)


def save_arrays(name: str, arrays: dict[str, Any]) -> None:
    """Write an npz file of the build folder."""
    np.savez(BUILD / name, **arrays)


def load_json(name: str) -> Any:
    """Read a JSON file of the build folder."""
    return json.loads((BUILD / name).read_text(encoding="utf-8"))


def save_json(name: str, value: Any) -> None:
    """Write a JSON file of the build folder."""
    (BUILD / name).write_text(json.dumps(value), encoding="utf-8")
