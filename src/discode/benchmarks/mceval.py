"""MCEval (Inoue et al. 2026): which of two captions is better, in six visual domains.

JSONL, one row per image: image, domain, candidates (two), reference (a text, or a list), preference
(0 or 1), and optionally an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode.benchmarks.base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Preferences,
)
from discode.benchmarks.parsing import as_texts, as_whole_number, check_new, get_field, get_text
from discode.errors import InputError
from discode.files import read_rows


def load_mceval(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read MCEval, or your own benchmark in its format; the category is the domain."""
    files = ROW.find_files(folder)
    builder = BenchmarkBuilder(ROW, folder)
    judged = []
    keys: set[str] = set()
    for where, row in read_rows(files["mceval.jsonl"]):
        candidates = as_texts(get_field(row, "candidates", where), "candidates", where)
        if len(candidates) != 2:
            raise InputError(f"{where}: candidates must be two, not {len(candidates)}")
        reference = get_field(row, "reference", where)
        listed = [reference] if isinstance(reference, str) else reference
        references = as_texts(listed, "reference", where)
        image, domain = get_text(row, "image", where), get_text(row, "domain", where)
        key = str(row.get("id", image))
        check_new(key, keys, where)
        keys.add(key)
        chosen = as_whole_number(get_field(row, "preference", where), "preference", where, 0, 1)
        left, right = (
            builder.add(image, caption, references, f"{key}#{i}", where)
            for i, caption in enumerate(candidates)
        )
        judged.append((left, right, chosen, domain))
    return builder.build(options, Preferences.of(judged), list(files.values()))


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
