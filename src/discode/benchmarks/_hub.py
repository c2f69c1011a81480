"""Benchmarks on the Hugging Face hub: hf://datasets/OWNER/NAME[@REVISION][/FOLDER]."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from discode.backends._local.hub import reachable
from discode.backends._local.load import quiet, short_message
from discode.benchmarks._base import LIMIT, Benchmark, BenchmarkRow, keep_images
from discode.errors import InputError, MissingExtraError, UnknownNameError, require

# A path has one slash where an address has two.
_ADDRESS = re.compile(r"hf:/+datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+?))?/*")


def read_from_hub(
    row: BenchmarkRow,
    data: str | os.PathLike[str],
    options: Mapping[str, Any],
    find_folder: Callable[[BenchmarkRow, Path], Path],
) -> Benchmark:
    """Load a benchmark after its files, and the images that it uses, are in the hub's cache."""
    match = _ADDRESS.fullmatch(os.fspath(data))
    if match is None:
        raise InputError(f"{data} is not of the form hf://datasets/OWNER/NAME[@REVISION][/FOLDER]")
    repo, below = match[1], match[3] or ""
    files = {file for form in (*row.forms, row.optional) for file in form}
    known = {posixpath.join(below, place, file) for place in ("", *row.folders) for file in files}
    wanted = " and ".join(row.forms[0])
    advice = (
        f"get {wanted} from https://huggingface.co/datasets/{repo} and give --data their folder"
    )
    try:
        names, download = _open(repo, unquote(match[2] or "main"), {*known, below} - {""})
        if not (found := names & {*known, below}):
            raise UnknownNameError(f"{row.name}: {wanted} not in hf://datasets/{repo}; {row.fetch}")
        root = download(found)
        folder = find_folder(row, root / below)
        own = dict(options)
        limit = own.pop(LIMIT.name, None)
        benchmark, images = _load(row, folder, own, limit, root, names)
        if images:
            download(images)
            benchmark, _ = _load(row, folder, own, limit, root, names)
    except MissingExtraError as error:
        raise InputError(f"{error}, or {advice}") from error
    except InputError:
        raise
    # The hub's library raises its own errors, those of its HTTP client and of the system.
    except Exception as error:
        raise InputError(f"hf://datasets/{repo}: {short_message(error)}; {advice}") from error
    note = f"from hf://datasets/{repo}@{root.name}"  # the folder is named by the commit
    return replace(benchmark, notes=(*benchmark.notes, note))


def _open(
    repo: str, revision: str, files: Iterable[str]
) -> tuple[frozenset[str], Callable[[Iterable[str]], Path]]:
    """List a dataset's files, and return what downloads some of them to its folder in the cache.

    Without a connection they are those in the cache, if one of ``files`` is there.
    """
    hub = require("huggingface_hub", "hf")
    constants = require("huggingface_hub.constants", "hf")
    where = {"repo_type": "dataset", "revision": revision}

    def download(names: Iterable[str]) -> Path:
        patterns = [glob.escape(name) for name in names]
        with quiet("huggingface_hub"):
            return Path(hub.snapshot_download(repo, allow_patterns=patterns, **where))

    offline = constants.is_offline_mode()
    if not offline and reachable(constants.ENDPOINT):
        listed = hub.HfApi().dataset_info(repo, revision=revision).siblings
        return frozenset(each.rfilename for each in listed), download
    for name in files:
        if isinstance(path := hub.try_to_load_from_cache(repo, name, **where), str):
            root = Path(path.removesuffix(name))
            cached = (each for each in root.rglob("*") if each.is_file())
            names = frozenset(each.relative_to(root).as_posix() for each in cached)
            return names, lambda _, root=root: root
    why = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
    raise ConnectionError(why)


def _load(
    row: BenchmarkRow, folder: Path, options: Mapping[str, Any], limit: int | None, root: Path,
    names: frozenset[str],
) -> tuple[Benchmark, set[str]]:  # fmt: skip
    """Load a benchmark, and list those of its missing images that the dataset has."""
    whole = row.load(folder, options)
    home = folder if folder.is_dir() else folder.parent
    found: dict[int, str] = {}
    for number, pair in zip(whole.image.tolist(), whole.pairs, strict=True):
        if number in whole.missing and number not in found:
            name = next(filter(names.__contains__, _places(row, home, str(pair.image), root)), "")
            found |= {number: name} if name else {}
    kept = replace(whole, missing=whole.missing - found.keys())
    kept = kept if limit is None else keep_images(kept, limit)
    return kept, {found[number] for number in {*kept.image.tolist()} & found.keys()}


def _places(row: BenchmarkRow, home: Path, image: str, root: Path) -> Iterable[str]:
    """Yield the names that a missing image may have in the dataset."""
    roots = [os.path.normpath(home / place) for place in row.image_folders]
    for default in roots:
        if image.startswith(f"{default}{os.sep}"):
            for place in roots:
                yield Path(os.path.relpath(f"{place}{image[len(default) :]}", root)).as_posix()
