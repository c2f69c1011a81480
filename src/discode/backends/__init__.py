"""Backends by name, and the options of each."""

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
    """A kind of model, and the class that opens it.

    Attributes:
        about: Its name in messages.
        module: The module of its class, imported when a model of this kind is opened.
        name: The class, called with the text after the colon and the options. Its options are
            the fields of the dataclass ``{name}Options`` in the same module, or its own fields.
        needs: Text required after the colon; empty if optional.
        required: Required options.
        fixed: Options that cannot be set.
        passes: Whether other options are passed on, unchecked.
        version: Version of the plug-in that defines it, added to the model's revision.
    """

    about: str
    module: str
    name: str
    needs: str = ""
    required: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    version: str = ""
    passes: bool = False

    def options(self) -> tuple[Option, ...]:
        """List the options of this kind.

        >>> KINDS["embedded"].options()[0].allowed_text
        'a whole number from 1, none'
        """
        module = import_module(self.module)
        declared = getattr(module, f"{self.name}Options", getattr(module, self.name))
        rows = options_of(declared) if is_dataclass(declared) else ()
        return tuple(row for row in rows if row.name not in self.fixed)

    def open(self, spec: str, options: Mapping[str, Any]) -> Backend:
        """Open a model of this kind; options may be strings, as on a command line."""
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
        """Convert options to their types, and drop those that are None."""
        values = {name: value for name, value in options.items() if value is not None}
        if not values:
            return {}
        declared = self.options()
        names = values.keys() if not self.passes else {row.name for row in declared}
        own = {name: value for name, value in values.items() if name in names}
        return {**values, **read_options(declared, own, self.about)}


_SERVED = "discode.backends._served.backend"
_KINDS = {
    "embedded": Kind(  # the model that ships with the package, or embedded:FILE.onnx
        "the embedded model", "discode.backends._embedded.backend", "Embedded"
    ),
    "endpoint": Kind(  # endpoint:NAME, a model on the server at base_url
        "a served model", _SERVED, "Served",
        "the server's name for the model", required=frozenset({"base_url"}),
    ),
    "hf": Kind(  # hf:ORG/NAME or hf:FOLDER, a local vision-language model; "hf:" is optional
        "a local model", "discode.backends._local.backend", "Local",
        "a hub name (ORG/NAME) or a model folder",
    ),
    "openai": Kind(  # openai:NAME, one of OpenAI's models
        "openai: (other servers are endpoint:NAME)", _SERVED, "Served",
        "the name of one of OpenAI's models", fixed=frozenset({"base_url"}),
    ),
    "recorded": Kind(  # recorded:FILE, a store or its JSONL or Parquet export
        "a recording", "discode.backends._recorded", "Recorded", needs="a store or an export of one"
    ),
    "vllm": Kind(  # vllm:ORG/NAME or vllm:FOLDER, a model that vLLM runs in this process
        "a model in vLLM", "discode.backends._vllm", "Vllm",
        "a hub name (ORG/NAME) or a model folder", passes=True,
    ),
}  # fmt: skip


def _adopt(name: str, plugin: object) -> Kind:
    """Turn a plug-in, a :class:`Kind` or a backend class, into a kind."""
    if isinstance(plugin, Kind):
        return plugin
    if isinstance(plugin, type) and hasattr(plugin, "read") and "." not in plugin.__qualname__:
        version = plugin_version(plugin.__module__)
        return Kind(f"the model {name!r}", plugin.__module__, plugin.__qualname__, version=version)
    raise InputError(f"{name} is not a backend; use a module-level subclass of discode.Backend")


KINDS = Table("model", "discode.backends", _KINDS, _adopt)
"""The kinds of models by the prefix before the colon; ``discover`` adds those of plug-ins."""

_FILES = (".db", ".sqlite", ".jsonl", ".ndjson", ".parquet")
_SPELLINGS = (
    " (embedded:FILE.onnx, recorded:FILE, a hub's ORG/NAME, a model folder, vllm:ORG/NAME, "
    "openai:NAME, or endpoint:NAME with base_url)"
)


def kind_of(model: str) -> tuple[Kind, str]:
    """Split a model name into its kind and the text after the colon.

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
    """Open ``scheme:rest``, a hub name, a model folder or a file of readings.

    ``options`` are those of the model's kind; None means not set, and strings ("2", "true") are
    converted.

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
        # isinstance would read the attributes: the identity of a served model asks its server.
        if Backend not in type(model).__mro__ and not isinstance(model, Backend):
            raise InputError(f"model must be a name or a Backend, not {type(model).__name__}")
        for name, value in (options or {}).items():
            if value is not None:
                raise InputError(f"set {name}={value} when you create the Backend, not here")
        return model
    kind, spec = kind_of(model)
    return kind.open(spec, options or {})
