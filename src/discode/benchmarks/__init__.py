"""Benchmarks: pairs with human judgments, read from the publishers' own files.

A benchmark is a file of ``data/benchmarks``, or, where the publisher's format needs code, a module
with its row at the end; ``BENCHMARKS`` collects the rows. docs/adding-a-benchmark.md shows how to
add one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from discode._files import read_rows
from discode._plugins import Table, plugin_version
from discode.benchmarks import (
    _composite,
    _custom,
    _declared,
    _flickr8k,
    _foil,
    _mceval,
    _pascal50s,
)
from discode.benchmarks._base import (
    LIMIT,
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    Preferences,
    Ratings,
)
from discode.benchmarks._declared import read_declared
from discode.errors import InputError, UnknownNameError
from discode.options import fill_options

__all__ = [
    "BENCHMARKS",
    "LIMIT",
    "Benchmark",
    "BenchmarkBuilder",
    "BenchmarkRow",
    "Preferences",
    "Ratings",
    "find_benchmark",
    "find_folder",
    "load_benchmark",
    "read_declared",
    "read_rows",
]

_ROWS = (
    _flickr8k.EXPERT,
    _flickr8k.CF,
    _composite.ROW,
    _pascal50s.ROW,
    _foil.ROW,
    _mceval.ROW,
    *_declared.ROWS,
    _custom.ROW,
)


def _adopt(name: str, plugin: object) -> BenchmarkRow:
    """Check the row of a plug-in, and record the plug-in's version in its benchmarks."""
    if not isinstance(plugin, BenchmarkRow):
        raise InputError(f"{name} is not a benchmark; give a BenchmarkRow")
    load_plugin, version = plugin.load, plugin_version(plugin.load.__module__)

    def load(folder: Path, options: Mapping[str, Any]) -> Benchmark:
        benchmark = load_plugin(folder, options)
        return replace(benchmark, options={**benchmark.options, "plugin": version})

    return replace(plugin, load=load)


BENCHMARKS = Table("benchmark", "discode.benchmarks", {row.name: row for row in _ROWS}, _adopt)
"""The benchmarks by name, in the order of tables; ``discover`` adds those of plug-ins."""


def load_benchmark(
    spec: str, data: str | os.PathLike[str], options: Mapping[str, object] | None = None
) -> Benchmark:
    """Read a benchmark from its own folder, or from a folder of such folders.

    ``options`` are the choices of its protocol, which may also follow its name
    ("foil:references=1"); the defaults reproduce the published cells.
    Missing images are no error: a pair's ``image`` is then where the image should be. ``data`` may
    be hf://datasets/OWNER/NAME[@REVISION][/FOLDER], where the hub can be reached or has been.
    """
    row, values = find_benchmark(spec, options)
    return _read(row, data, values)


def _is_address(data: str | os.PathLike[str]) -> bool:
    return Path(data).parts[:1] == ("hf:",)


def _read(row: BenchmarkRow, data: str | os.PathLike[str], options: Mapping[str, Any]) -> Benchmark:
    if _is_address(data):
        from discode.benchmarks._hub import read_from_hub

        return read_from_hub(row, data, options, find_folder)
    return row.read(find_folder(row, data), options)


def find_benchmark(
    spec: str, options: Mapping[str, object] | None = None
) -> tuple[BenchmarkRow, dict[str, Any]]:
    """Find a benchmark's row and the value of every option; refuse wrong ones.

    >>> row, options = find_benchmark("foil:references=1")
    >>> row.title, options
    ('FOIL', {'references': 1, 'pairs': 'all', 'limit': None})
    """
    name, row, typed = BENCHMARKS.find(spec, imports=True)
    declared, values = (*row.options, LIMIT), {**typed, **(options or {})}
    return row, fill_options(declared, values, f"benchmark {name!r}")


def load_present(
    specs: Sequence[str], data: str | os.PathLike[str]
) -> tuple[dict[str, Benchmark], dict[str, str]]:
    """Load the benchmarks that a folder of them has, by spec, and why others are missing, by name.

    One whose files are there but damaged is an error, and so is one that is named twice.
    """
    found = [(spec, *find_benchmark(spec)) for spec in specs]
    names = [row.name for _, row, _ in found]
    if len({*names}) < len(names):
        repeated = max(names, key=names.count)
        raise InputError(f"-b {repeated} is given twice; use one run for each set of options")
    loaded: dict[str, Benchmark] = {}
    missing: dict[str, str] = {}
    for spec, row, options in found:
        try:
            loaded[spec] = _read(row, data, options)
        except InputError as error:
            if _has_files(row, data, error):
                raise
            missing[row.name] = str(error)
    return loaded, missing


def _has_files(row: BenchmarkRow, data: str | os.PathLike[str], error: InputError) -> bool:
    """Whether the files that could not be read are there."""
    if _is_address(data):
        return not isinstance(error, UnknownNameError)
    try:
        row.find_files(find_folder(row, data))
    except InputError:
        return False
    return True


def find_folder(row: BenchmarkRow, data: str | os.PathLike[str]) -> Path:
    """Find a benchmark's folder: ``data``, or the folder in it that has one of its names."""
    data = Path(data)
    folders = (data, *(data / known for known in row.folders))
    # Other benchmarks may have the optional files as well, so the files it is read from come first.
    for wanted in ({file for form in row.forms for file in form}, set(row.optional)):
        for folder in folders:
            if any((folder / file).is_file() for file in wanted):
                return folder
    return next((folder for folder in folders[1:] if folder.is_dir()), data)
