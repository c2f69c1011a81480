"""MCEval (Inoue et al. 2026): which of two captions is better, in six visual domains.

JSONL, a row an image: image, domain, candidates (two), reference (a text, or a list), preference
(0 or 1), and if you like an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from discode.benchmarks.base import Benchmark, Builder, preferences
from discode.benchmarks.facts import FACTS
from discode.benchmarks.reading import form_of, get, text, texts, whole
from discode.errors import InputError
from discode.files import read_rows

DOMAINS = ("real", "painting", "sketch", "quickdraw", "clipart", "infograph")
"""The paper's; a file of yours may have others."""


@dataclass(frozen=True)
class Choice:
    """Two candidates for an image, and which people preferred."""

    where: str
    key: str
    image: str
    domain: str
    candidates: tuple[str, str]
    references: tuple[str, ...]
    chosen: int


def load_mceval(folder: Path, options: Mapping[str, str]) -> Benchmark:
    """Read MCEval, or a benchmark of yours in its format; the category is the domain."""
    name = "mceval"
    files = form_of(name, folder)
    builder = Builder(folder, FACTS[name].images)
    judged = []
    for choice in read_mceval(files["mceval.jsonl"]):
        left, right = (
            builder.add(choice.image, caption, choice.references, f"{choice.key}#{i}", choice.where)
            for i, caption in enumerate(choice.candidates)
        )
        judged.append((left, right, choice.chosen, choice.domain))
    return builder.build(name, options, preferences(judged), list(files.values()))


def read_mceval(path: Path) -> list[Choice]:
    """Return the rows of a file in MCEval's format."""
    choices: list[Choice] = []
    keys: set[str] = set()
    for where, row in read_rows(path):
        candidates = texts(get(row, "candidates", where), "candidates", where)
        if len(candidates) != 2:
            raise InputError(f"{where}: candidates must be two, not {len(candidates)}")
        reference = get(row, "reference", where)
        image = text(row, "image", where)
        key = str(row.get("id", image))
        if key in keys:
            raise InputError(f"{where}: id {key!r} was there before; images or ids must be unique")
        keys.add(key)
        choices.append(
            Choice(
                where,
                key,
                image,
                text(row, "domain", where),
                (candidates[0], candidates[1]),
                texts([reference] if isinstance(reference, str) else reference, "reference", where),
                whole(get(row, "preference", where), "preference", where, 0, 1),
            )
        )
    if not choices:
        raise InputError(f"{path.name} holds no rows")
    return choices
