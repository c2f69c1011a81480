"""Write the dataset's card from the campaign's facts; what only the publisher knows is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode.errors import require

FILL = "TO BE FILLED"
TEMPLATE = Path(__file__).with_name("card.md")


@dataclass(frozen=True)
class DatasetFacts:
    """Everything the card says; ``domains`` has a last row "all" where there are several."""

    title: str
    licence: str
    contact: str
    images: str
    parquet: bool
    writers: bool
    rules: Mapping[str, Any]
    checks: Mapping[str, Any]
    domains: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str]
    """Domains that have fewer images than was wanted, or of which finished images are left out."""
    people: int
    careless: int
    answers: int
    void: int
    withdrawn: int
    """Answers that the people who gave them withdrew; part of ``void``."""
    skip_reasons: Mapping[str, int]
    flag_reasons: Mapping[str, int]
    hours: float
    guides: Sequence[str]
    """The guides that people were shown, oldest first; where none was kept, that of today."""
    guides_kept: bool
    second_looks: Mapping[str, int]
    """Revisions accepted and rejected by a second person; empty without that rule."""
    study: Mapping[str, Any]
    version: str
    decisions: Sequence[Mapping[str, Any]] = ()
    """Every decision about a person, without names, and what it was made on."""


def dataset_card(facts: DatasetFacts) -> str:
    """Return the card as Markdown with the front matter that ``datasets`` reads."""
    jinja2 = require("jinja2", "mceval")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    environment.filters |= {"json": _json, "fixed": _fixed, "share": _share, "line": _line}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    total = facts.domains.get("all") or next(iter(facts.domains.values()))
    return str(template.render(vars(facts), total=total, FILL=FILL))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _fixed(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _line(text: str) -> str:
    return " ".join(text.split())
