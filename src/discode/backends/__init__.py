"""Who is asked: backends by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from discode.backends.base import Backend, Choosy, Flowing, Runtime, Stoppable
from discode.backends.embedded import Embedded
from discode.backends.recorded import Recorded
from discode.errors import InputError, lookup

__all__ = [
    "BACKENDS", "Backend", "Choosy", "Embedded", "Flowing", "Recorded", "Runtime",
    "Stoppable", "open_backend",
]  # fmt: skip


def _recorded(spec: str, runtime: Runtime) -> Backend:
    runtime.only("a recording")
    path, _, model = spec.partition("#")
    return Recorded(path, model=model or None)


def _embedded(spec: str, runtime: Runtime) -> Backend:
    runtime.only("the embedded model", "threads")
    return Embedded(spec or None, threads=runtime.threads)


def _hf(spec: str, runtime: Runtime) -> Backend:
    if not spec:
        raise InputError("hf: needs a hub's ORG/NAME or a model's folder behind the colon")
    from discode.backends.local.backend import Local

    runtime.only(
        "a local model", "device", "dtype", "revision", "batch_captions", "trust_remote_code",
        "quantize", "device_map",
    )  # fmt: skip
    return Local(
        spec,
        device=runtime.device,
        dtype=runtime.dtype or "auto",
        revision=runtime.revision,
        batch_captions=runtime.batch_captions,
        trust_remote_code=bool(runtime.trust_remote_code),
        quantize=runtime.quantize,
        device_map=runtime.device_map,
    )


_SERVED = (
    "key_variable", "image_size", "concurrency", "rate", "timeout", "max_requests", "max_cost",
    "prices",
)  # fmt: skip


def _openai(spec: str, runtime: Runtime) -> Backend:
    runtime.only("openai:; give endpoint:NAME for another server", *_SERVED)
    return _served(spec, runtime)


def _endpoint(spec: str, runtime: Runtime) -> Backend:
    runtime.only("a served model", "base_url", *_SERVED)
    if runtime.base_url is None:
        raise InputError(
            "endpoint: needs the server's address, base_url (--base-url): http://localhost:8000/v1"
        )
    return _served(spec, runtime)


def _served(spec: str, runtime: Runtime) -> Backend:
    from discode.backends.served.backend import Served

    given = {name: getattr(runtime, name) for name in ("base_url", *_SERVED)}
    return Served(spec, **{name: value for name, value in given.items() if value is not None})


BACKENDS: dict[str, Callable[[str, Runtime], Backend]] = {
    "embedded": _embedded,  # the model that ships with the package; embedded:FILE.onnx, another
    "endpoint": _endpoint,  # endpoint:NAME, a model that a server at base_url has
    "hf": _hf,  # hf:ORG/NAME or hf:FOLDER, a local vision-language model; "hf:" may be left out
    "openai": _openai,  # openai:NAME, one of OpenAI's models
    "recorded": _recorded,  # recorded:FILE, a store or its JSONL or Parquet export
}
"""Scheme to constructor; it gets what stands behind the colon, and how to run it."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")
_KINDS = (
    " (embedded:FILE.onnx, recorded:FILE, ORG/NAME of a hub, a model's folder, openai:NAME, or "
    "endpoint:NAME with base_url)"
)


def open_backend(
    model: str | os.PathLike[str] | Backend, runtime: Runtime | None = None
) -> Backend:
    """Return the backend for ``scheme:rest``, a hub name, a folder, a file of readings.

    >>> open_backend("embedded", Runtime(threads=1)).capabilities
    frozenset({'hidden'})
    """
    runtime = runtime or Runtime()
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        if not isinstance(model, Backend):
            raise InputError(f"a model is a name or a Backend, not {type(model).__name__}")
        runtime.only("a Backend; give it where you make that")
        return model
    scheme, colon, rest = model.partition(":")
    if scheme in BACKENDS:
        return BACKENDS[scheme](rest, runtime)
    if model.partition("#")[0].lower().endswith(_FILES):
        return _recorded(model, runtime)
    if (model and Path(model).is_dir()) or ("/" in model and not colon):
        return _hf(model, runtime)
    return lookup(BACKENDS, scheme, "model", also=_KINDS)(rest, runtime)
