"""Check benchmark data: which files are present, and whether they are complete."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from discode._files import sha256
from discode.benchmarks import BENCHMARKS, find_folder, load_benchmark
from discode.benchmarks._base import Benchmark, BenchmarkRow, DataFile, likeliest_form
from discode.errors import DiscodeError, InputError, MissingExtraError


@dataclass(frozen=True)
class FileCheck:
    """The result of a check; ``state`` is ok, missing, damaged, or unknown version."""

    benchmark: str
    file: str
    state: str
    detail: str


def check_data(folder: str | os.PathLike[str]) -> list[FileCheck]:
    """Check every benchmark in its own folder or in a folder of such folders.

    A file with a checksum we know is ok, one with another checksum an unknown version. Files that
    cannot be loaded are damaged; the detail names the place. Images are counted.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    return [check for row in BENCHMARKS.values() for check in _check_benchmark(row, folder)]


def _check_benchmark(row: BenchmarkRow, data: Path) -> list[FileCheck]:
    folder = find_folder(row, data)
    forms = [form for form in row.forms if any((folder / file).is_file() for file in form)]
    if not forms and not row.files:
        return []  # a benchmark of one's own is not missing
    if not forms:
        wanted = " and ".join(row.forms[0])
        return [
            FileCheck(
                row.name, wanted, "missing", f"not in {data}; see discode bench list {row.name}"
            )
        ]
    form = likeliest_form(folder, forms)
    extra = [file for file in row.optional if file not in form and (folder / file).is_file()]
    checks = [_check_file(row, folder / file) for file in (*form, *extra)]
    if all(check.state != "missing" for check in checks):
        checks.append(_check_images(row, folder))
    return checks


def _check_file(row: BenchmarkRow, path: Path) -> FileCheck:
    known = row.files.get(path.name, DataFile())
    if not path.is_file():
        state, detail = "missing", f"not in {path.parent}; {row.fetch}"
    elif not known.sha256:
        state, detail = "ok", "no checksum is known"
    elif (digest := sha256(path)) == known.sha256:
        state, detail = "ok", f"as distributed by {known.origin}"
    else:
        state, detail = "unknown version", f"another SHA-256: {digest}"
    return FileCheck(row.name, path.name, state, detail)


def _check_images(row: BenchmarkRow, folder: Path) -> FileCheck:
    """Load with the defaults and count the images that are present."""
    check = FileCheck(row.name, "images", "ok", "")
    try:
        benchmark = load_benchmark(row.name, folder)
    except MissingExtraError as error:
        return replace(check, state="unknown version", detail=str(error))
    except DiscodeError as error:
        return replace(check, file="(all files together)", state="damaged", detail=str(error))
    images = {
        number: str(pair.image)
        for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True)
    }
    missing = sum(not Path(image).is_file() for image in images.values())
    present = f"{len(images) - missing:,} of {len(images):,} images"
    if missing:
        detail = f"{present}; metrics of text alone can be run"
        return replace(check, state="missing", detail=detail)
    return replace(check, detail=present)


def unknown_versions(benchmark: Benchmark) -> list[str]:
    """Describe each file whose checksum is not the known one."""
    known = BENCHMARKS[benchmark.name].files
    return [
        f"{name} is not the version that reproduces the published numbers; see discode bench check"
        for name, digest in benchmark.checksums.items()
        if name in known and known[name].sha256 not in ("", digest)
    ]
