"""Who is asked: backends by name, and the options that each of them takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from discode._plugins import Table, plugin_version
from discode.backends._base import Backend, Blocks, read_all
from discode.errors import InputError
from discode.options import Option, options_of, read_options
from discode.readings import Identity

__all__ = ["KINDS", "Backend", "Blocks", "Kind", "kind_of", "open_backend", "read_all"]


@dataclass(frozen=True)
class Kind:
    """A kind of model: what it is called, the class that opens it, and what stands in its name.

    Attributes:
        about: What messages call it.
        module: Where its class is; imported when a model of this kind is opened.
        name: The class. It is called with what stands after the colon, and with the options.
            Its options are the dataclass ``{name}Options`` of the same module, or its own fields.
        needs: What must stand after the colon; empty where nothing need.
        required: Options that must be given.
        fixed: Options that may not be given.
        version: Of the plug-in that it comes from; becomes part of the model's revision.
    """

    about: str
    module: str
    name: str
    needs: str = ""
    required: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    version: str = ""

    def options(self) -> tuple[Option, ...]:
        """Return the options that this kind takes.

        >>> KINDS["embedded"].options()[0].allowed_text
        'a whole number from 1, none'
        """
        module = import_module(self.module)
        declared = getattr(module, f"{self.name}Options", getattr(module, self.name))
        rows = options_of(declared) if is_dataclass(declared) else ()
        return tuple(row for row in rows if row.name not in self.fixed)

    def open(self, spec: str, options: Mapping[str, Any]) -> Backend:
        """Open a model of this kind; ``options`` may hold strings, as a command line does."""
        values = self.check(options)
        if self.needs and not spec:
            raise InputError(f"{self.about} needs {self.needs} after the colon")
        for name in sorted(self.required - values.keys()):
            raise InputError(f"{self.about} needs {name} (-M {name}=VALUE)")
        backend: Backend = getattr(import_module(self.module), self.name)(spec, **values)
        if self.version:
            if not isinstance(getattr(backend, "identity", None), Identity):
                raise InputError(f"{self.about} has no identity; set it to an Identity")
            revision = f"{backend.identity.revision}@{self.version}"
            identity = replace(backend.identity, revision=revision)
            object.__setattr__(backend, "identity", identity)
        return backend

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in their types, without those that are None."""
        values = {name: value for name, value in options.items() if value is not None}
        return read_options(self.options(), values, self.about) if values else {}


_SERVED = "discode.backends._served.backend"
_KINDS = {
    "embedded": Kind(  # the model that ships with the package; embedded:FILE.onnx, another
        "the embedded model", "discode.backends._embedded.backend", "Embedded"
    ),
    "endpoint": Kind(  # endpoint:NAME, a model that the server at base_url has
        "a served model", _SERVED, "Served",
        "the model's name, as the server calls it", required=frozenset({"base_url"}),
    ),
    "hf": Kind(  # hf:ORG/NAME or hf:FOLDER, a local vision-language model; "hf:" may be left out
        "a local model", "discode.backends._local.backend", "Local",
        "a hub's ORG/NAME or a model's folder",
    ),
    "openai": Kind(  # openai:NAME, one of OpenAI's models
        "openai: (other servers are endpoint:NAME)", _SERVED, "Served",
        "the name of one of OpenAI's models", fixed=frozenset({"base_url"}),
    ),
    "recorded": Kind(  # recorded:FILE, a store or its JSONL or Parquet export
        "a recording", "discode.backends._recorded", "Recorded", needs="a store or an export of one"
    ),
}  # fmt: skip


def _adopt(name: str, plugin: object) -> Kind:
    """Return the kind of a plug-in: one, or a class of backends, made of what follows its name."""
    if isinstance(plugin, Kind):
        return plugin
    if isinstance(plugin, type) and hasattr(plugin, "read") and "." not in plugin.__qualname__:
        version = plugin_version(plugin.__module__)
        return Kind(f"the model {name!r}", plugin.__module__, plugin.__qualname__, version=version)
    raise InputError(f"{name} is not a backend; give a class of a module, based on discode.Backend")


KINDS = Table("model", "discode.backends", _KINDS, _adopt)
"""The kinds of models, by the word before the colon; ``discover`` adds those of plug-ins."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")
_SPELLINGS = (
    " (embedded:FILE.onnx, recorded:FILE, ORG/NAME of a hub, a model's folder, openai:NAME, or "
    "endpoint:NAME with base_url)"
)


def kind_of(model: str) -> tuple[Kind, str]:
    """Return the kind of model that a name means, and what stands after the colon.

    >>> kind_of("llava-hf/llama3-llava-next-8b-hf")[0].about
    'a local model'
    """
    scheme, colon, rest = model.partition(":")
    if scheme in KINDS:
        return KINDS[scheme], rest
    if any(f"{suffix}#" in f"{model.lower()}#" for suffix in _FILES):
        return KINDS["recorded"], model
    if (model and Path(model).is_dir()) or ("/" in model and not colon):
        return KINDS["hf"], model
    return KINDS.split(model, imports=True, also=_SPELLINGS)[1:]


def open_backend(
    model: str | os.PathLike[str] | Backend, options: Mapping[str, Any] | None = None
) -> Backend:
    """Return the backend for ``scheme:rest``, a hub name, a folder, a file of readings.

    ``options`` are those of the model's kind; None stands for one that was not given, and a
    string is converted ("2", "true").

    >>> open_backend("embedded", {"threads": "1"}).capabilities
    frozenset({'hidden'})
    >>> open_backend("embedded", {"thread": 1})
    Traceback (most recent call last):
    discode.errors.UnknownNameError: the embedded model has no option 'thread'; did you mean \
'threads'?
    """
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        # What inherits is not looked at: the identity of a served model asks its server.
        if Backend not in type(model).__mro__ and not isinstance(model, Backend):
            raise InputError(f"a model is a name or a Backend, not {type(model).__name__}")
        for name, value in (options or {}).items():
            if value is not None:
                raise InputError(f"{name}={value} is not for a Backend; give it where you make it")
        return model
    kind, spec = kind_of(model)
    return kind.open(spec, options or {})
