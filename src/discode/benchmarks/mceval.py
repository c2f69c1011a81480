"""MCEval (Inoue et al. 2026): which of two captions is better, in six visual domains.

JSONL, one row per image: image, domain, candidates (two), reference (a text, or a list), preference
(0 or 1), and optionally an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode.benchmarks.base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Preferences,
)
from discode.benchmarks.parsing import as_texts, as_whole_number, get_field, get_text
from discode.errors import InputError
from discode.files import read_rows


@dataclass(frozen=True)
class McevalChoice:
    """Two candidates for an image, and which people preferred."""

    where: str
    key: str
    image: str
    domain: str
    candidates: tuple[str, str]
    references: tuple[str, ...]
    chosen: int


def load_mceval(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read MCEval, or your own benchmark in its format; the category is the domain."""
    files = ROW.find_files(folder)
    builder = BenchmarkBuilder(ROW, folder)
    judged = []
    for choice in read_mceval(files["mceval.jsonl"]):
        left, right = (
            builder.add(choice.image, caption, choice.references, f"{choice.key}#{i}", choice.where)
            for i, caption in enumerate(choice.candidates)
        )
        judged.append((left, right, choice.chosen, choice.domain))
    return builder.build(options, Preferences.of(judged), list(files.values()))


def read_mceval(path: Path) -> list[McevalChoice]:
    """Return the rows of a file in MCEval's format."""
    choices: list[McevalChoice] = []
    keys: set[str] = set()
    for where, row in read_rows(path):
        candidates = as_texts(get_field(row, "candidates", where), "candidates", where)
        if len(candidates) != 2:
            raise InputError(f"{where}: candidates must be two, not {len(candidates)}")
        reference = get_field(row, "reference", where)
        image = get_text(row, "image", where)
        key = str(row.get("id", image))
        if key in keys:
            raise InputError(f"{where}: id {key!r} was there before; images or ids must be unique")
        keys.add(key)
        choices.append(
            McevalChoice(
                where,
                key,
                image,
                get_text(row, "domain", where),
                (candidates[0], candidates[1]),
                as_texts(
                    [reference] if isinstance(reference, str) else reference, "reference", where
                ),
                as_whole_number(get_field(row, "preference", where), "preference", where, 0, 1),
            )
        )
    if not choices:
        raise InputError(f"{path.name} holds no rows")
    return choices


ROW = BenchmarkRow(
    "mceval",
    "MCEval",
    "6,000 choices between two captions in six visual domains; accuracy by domain",
    load_mceval,
    source="the authors of DISCODE (no public copy is known); or your own in the same format",
    licence="unknown; images: DomainNet and InfographicVQA, research only",
    citation="Inoue et al.: DISCODE. AAAI 2026",
    forms=(("mceval.jsonl",),),
    files={"mceval.jsonl": DataFile()},
    folders=("mceval", "MCEval"),
    categories=("real", "painting", "sketch", "quickdraw", "clipart", "infograph"),
    published_sizes=lambda options: ((6000, 6000),),
)
