"""Check benchmark data: which files are present, and whether they are complete."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from discode.benchmarks import BENCHMARKS, find_folder, load_benchmark
from discode.benchmarks.base import Benchmark, BenchmarkRow, DataFile, likeliest_form
from discode.errors import DiscodeError, InputError, MissingExtraError
from discode.files import sha256


@dataclass(frozen=True)
class FileCheck:
    """What was found: ``state`` is ok, missing, damaged, or unknown version."""

    benchmark: str
    file: str
    state: str
    detail: str


def check_data(folder: str | os.PathLike[str]) -> list[FileCheck]:
    """Check every benchmark in its own folder or in a folder of such folders.

    A file with a checksum we know is ok. One with another checksum is an unknown version if it can
    be read and has the right number of rows, and damaged if not. Images are counted.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    return [found for row in BENCHMARKS.values() for found in _check_benchmark(row, folder)]


def _check_benchmark(row: BenchmarkRow, data: Path) -> list[FileCheck]:
    folder = find_folder(row, data)
    forms = [form for form in row.forms if any((folder / file).is_file() for file in form)]
    if not forms and not row.files:
        return []  # a benchmark of one's own is not missing
    if not forms:
        wanted = " and ".join(row.forms[0])
        return [FileCheck(row.name, wanted, "missing", f"not in {data}; {row.fetch}")]
    form = likeliest_form(folder, forms)
    extra = [file for file in row.optional if file not in form and (folder / file).is_file()]
    found = [_check_file(row, folder / file) for file in (*form, *extra)]
    if all(each.state in ("ok", "unknown version") for each in found):
        found.append(_check_images(row, folder))
    return found


def _check_file(row: BenchmarkRow, path: Path) -> FileCheck:
    def result(state: str, detail: str) -> FileCheck:
        return FileCheck(row.name, path.name, state, detail)

    known = row.files.get(path.name, DataFile())
    if not path.is_file():
        return result("missing", f"not in {path.parent}; {row.fetch}")
    digest = sha256(path)
    if known.sha256 and digest == known.sha256:
        return result("ok", f"{known.rows:,} {known.unit}, as distributed by {known.origin}")
    if known.count is None:
        return result("ok", "rows are checked when it is loaded; no checksum is known")
    try:
        rows = known.count(path)
    except MissingExtraError as error:
        return result("unknown version", str(error))
    except DiscodeError as error:
        return result("damaged", str(error))
    counted = f"{rows:,} {known.unit}"
    if known.rows and rows != known.rows:
        return result("damaged", f"{counted}, should be {known.rows:,}")
    if not known.sha256:
        return result("ok", f"{counted}; no checksum is known")
    return result("unknown version", f"{counted}, as it should be; another SHA-256: {digest}")


def _check_images(row: BenchmarkRow, folder: Path) -> FileCheck:
    """Load with the defaults and count the images that are present."""
    found = FileCheck(row.name, "images", "ok", "")
    try:
        benchmark = load_benchmark(row.name, folder)
    except MissingExtraError as error:
        return replace(found, state="unknown version", detail=str(error))
    except DiscodeError as error:
        return replace(found, file="(all files together)", state="damaged", detail=str(error))
    images = {
        number: str(pair.image)
        for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True)
    }
    missing = sum(not Path(image).is_file() for image in images.values())
    present = f"{len(images) - missing:,} of {len(images):,} images"
    if missing:
        detail = f"{present}; metrics of text alone can be run"
        return replace(found, state="missing", detail=detail)
    return replace(found, detail=present)


def unknown_versions(benchmark: Benchmark) -> list[str]:
    """Return a line about each file whose checksum is not the one we know."""
    known = BENCHMARKS[benchmark.name].files
    return [
        f"{name} is not the version that reproduces the published numbers; discode bench check "
        "says more"
        for name, digest in benchmark.checksums.items()
        if name in known and known[name].sha256 not in ("", digest)
    ]
