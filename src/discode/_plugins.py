"""Tables whose rows others may bring: a decoder, backend, benchmark or metric without a fork.

A row is found by its name in the table, by the name of an entry point that an installed
distribution declares in the table's group, or, where whoever names it may run code here, as
``module:attribute``.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from discode._files import sha256
from discode.errors import InputError, lookup
from discode.options import parse_options

R = TypeVar("R")
LOG = logging.getLogger("discode")
MODULES: dict[str, str] = {}
"""The modules that plug-ins were taken from, with whose they are, as far as that is known."""


class Table(dict[str, R]):
    """Rows by name: the package's own, and once a name is missing or all are listed, plug-ins'.

    Args:
        kind: What messages call a row ("method").
        group: The group of entry points ("discode.decoders").
        rows: The package's own.
        adopt: Makes a row of what a plug-in has, from its name and the object.
    """

    def __init__(
        self, kind: str, group: str, rows: Mapping[str, R], adopt: Callable[[str, object], R]
    ) -> None:
        super().__init__(rows)
        self.kind, self.group, self.adopt = kind, group, adopt

    @cached_property
    def _points(self) -> dict[str, metadata.EntryPoint]:
        points: dict[str, metadata.EntryPoint] = {}
        for point in metadata.entry_points(group=self.group):
            if point.name in self or point.name in points:
                LOG.warning(
                    "discode: the %s %r of %s is hidden by another of that name; use %s",
                    self.kind, point.name, _owner(point), point.value,
                )  # fmt: skip
            else:
                points[point.name] = point
        return points

    def discover(self) -> Table[R]:
        """Return the table with the rows of installed plug-ins; one that is broken is logged."""
        for name in [name for name in self._points if name not in self]:
            try:
                self[name]
            except InputError as error:
                LOG.warning("discode: %s", error)
        return self

    def __missing__(self, name: str) -> R:
        point = self._points[name]
        self._add(name, point.module, point.load, _owner(point))
        return self[name]

    def split(self, spec: str, *, imports: bool = False, also: str = "") -> tuple[str, R, str]:
        """Return the name, its row, and what follows the name and a colon.

        With ``imports`` the name may be ``module:attribute``, and that module is run.
        """
        name, _, rest = spec.partition(":")
        if imports and name not in self and name not in self._points:
            attribute, _, more = rest.partition(":")
            if name and attribute.isidentifier():
                name, rest = f"{name}:{attribute}", more
                if name not in self:
                    self._import(name)
        row = self.get(name)  # in the table, mostly
        return name, lookup(self, name, self.kind, also) if row is None else row, rest

    def find(
        self, spec: str, *, imports: bool = False, also: str = ""
    ) -> tuple[str, R, dict[str, str]]:
        """Return the name, its row, and the options of ``name:key=value,...``."""
        name, row, options = self.split(spec, imports=imports, also=also)
        return name, row, parse_options(filter(None, options.split(",")), spec) if options else {}

    def takes(self, spec: str) -> bool:
        """Return whether a name, or ``module:attribute``, is or can become a row."""
        try:
            self.split(spec, imports=True)
        except InputError:
            return False
        return True

    def _import(self, name: str) -> None:
        """Take in ``module:attribute``; modules of the working directory count, too."""
        module, _, attribute = name.partition(":")
        if module.endswith(".py") or not module.replace(".", "_").isidentifier():
            raise InputError(
                f"{module!r} is not a module; write {Path(module).stem}:{attribute} for a file "
                "of the working directory"
            )
        if not {"", str(Path.cwd())} & set(sys.path):
            sys.path.append(str(Path.cwd()))
        self._add(name, module, lambda: getattr(importlib.import_module(module), attribute))

    def _add(self, name: str, module: str, load: Callable[[], object], owner: str = "") -> None:
        try:
            loaded = load()
            MODULES.setdefault(module, owner.replace(" ", "-"))
            self[name] = self.adopt(name, loaded)
        except (Exception, SystemExit) as error:  # a module may raise anything on import
            why = str(error) if isinstance(error, InputError) else _described(error)
            whose = owner and f" of {owner}"
            raise InputError(f"cannot load the {self.kind} {name!r}{whose}: {why}") from error


def _owner(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else ""


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def blame(error: BaseException) -> str:
    """Return a line that names the plug-in whose code raised an error; "" if none did."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if (module := frame.f_globals.get("__name__")) in MODULES:
            where = f"{frame.f_code.co_name}, line {line}"
            return f"the plug-in {module} failed in {where}: {_described(error)}"
    # A StopIteration that leaves a generator becomes the cause of a RuntimeError.
    return "" if error.__cause__ is None else blame(error.__cause__)


def exited(plugin: object, error: BaseException) -> InputError:
    """Return what to raise for a plug-in's SystemExit or StopIteration.

    Both would end the run as if it were complete, with exit code 0.

    >>> exited(1.5, SystemExit(0))
    InputError('the plug-in float raised SystemExit(0)')
    """
    return InputError(blame(error) or f"the plug-in {type(plugin).__qualname__} raised {error!r}")


@cache
def plugin_version(module: str) -> str:
    """Return whose code a module is and of which version, for signatures; "" for discode's own.

    That is the distribution's name and version, or where it belongs to none, the module's name
    and a digest of its file.

    >>> plugin_version(__name__)
    ''
    """
    package = module.partition(".")[0]
    if package == "discode":
        return ""
    if MODULES.get(module):
        return MODULES[module]
    for distribution in metadata.distributions():
        if any(path.parts[0] in (package, f"{package}.py") for path in distribution.files or ()):
            return f"{distribution.name}-{distribution.version}"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # typed into a console
        return package
    return f"{package}-{sha256(Path(file))[:8]}"
