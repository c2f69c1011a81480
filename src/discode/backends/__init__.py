"""Who is asked. ``open_backend`` turns a model's name into a backend."""

from __future__ import annotations

import os
from collections.abc import Callable

from discode.backends.base import Backend, Choosy
from discode.backends.recorded import Recorded, demo_path
from discode.errors import InputError, lookup

__all__ = ["BACKENDS", "Backend", "Choosy", "Recorded", "demo_path", "open_backend"]


def _recorded(spec: str) -> Backend:
    path, _, model = spec.partition("#")
    return Recorded(path, model=model or None)


def _embedded(spec: str) -> Backend:
    from discode.backends.embedded import Embedded

    return Embedded(spec)


def _demo(spec: str) -> Backend:
    if spec:
        raise InputError(f"model 'demo' takes nothing behind a colon, not {spec!r}")
    return Recorded(demo_path() / "readings.jsonl")


BACKENDS: dict[str, Callable[[str], Backend]] = {
    "recorded": _recorded,  # recorded:FILE, a store or its JSONL or Parquet export
    "embedded": _embedded,  # embedded:FILE.onnx, made by training/
    "demo": _demo,  # the recording that ships with the package
}
"""Scheme to constructor; the constructor gets what stands behind the colon."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")


def open_backend(model: str | os.PathLike[str] | Backend) -> Backend:
    """Return the backend for ``scheme:rest``, for a file of readings, or the one given.

    >>> open_backend("demo").identity.model
    'discode-prototype-b6s'
    """
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        if not isinstance(model, Backend):
            raise InputError(f"a model is a name or a Backend, not {type(model).__name__}")
        return model
    if model.partition("#")[0].lower().endswith(_FILES) and not model.startswith("recorded:"):
        return _recorded(model)
    scheme, _, rest = model.partition(":")
    return lookup(BACKENDS, scheme, "model", also=" (recorded:FILE, embedded:FILE.onnx, demo)")(
        rest
    )
