"""MCEval (Inoue et al. 2026): which of two captions is better, in six visual domains.

JSONL, one row per image: image, domain, candidates (two), reference (a text, or a list), preference
(0 or 1), and optionally an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode._files import read_rows
from discode.benchmarks._base import (
    Benchmark,
    BenchmarkBuilder,
    BenchmarkRow,
    DataFile,
    Preferences,
)
from discode.benchmarks._parsing import Entry


def load_mceval(folder: Path, options: Mapping[str, Any]) -> Benchmark:
    """Read MCEval, or your own benchmark in its format; the category is the domain."""
    files = ROW.find_files(folder)
    builder = BenchmarkBuilder(ROW, folder)
    judged = []
    keys: set[str] = set()
    for where, row in read_rows(files["mceval.jsonl"]):
        entry = Entry(row, where)
        if isinstance(entry.get("reference"), str):
            row["reference"] = [row["reference"]]
        image, references = entry.text("image"), entry.texts("reference")
        key = str(row.get("id", image))
        entry.check_new(key, keys)
        keys.add(key)
        left, right = (
            builder.add(image, caption, references, f"{key}#{i}", where)
            for i, caption in enumerate(entry.two_texts("candidates"))
        )
        judged.append((left, right, entry.whole("preference", 0, 1), entry.text("domain")))
    return builder.build(options, Preferences.of(judged), list(files.values()))


ROW = BenchmarkRow(
    "mceval",
    "MCEval",
    "6,000 choices between two captions in six domains; accuracy",
    load_mceval,
    source="the authors of DISCODE (no public copy is known); or your own in the same format",
    licence="unknown; images: DomainNet and InfographicVQA, research only",
    citation="Inoue et al.: DISCODE. AAAI 2026",
    forms=(("mceval.jsonl",),),
    files={"mceval.jsonl": DataFile()},
    folders=("mceval", "MCEval"),
    tried="made-up files in the paper's format",
    categories=("real", "painting", "sketch", "quickdraw", "clipart", "infograph"),
    published_sizes=lambda options: ((6000, 6000),),
)
