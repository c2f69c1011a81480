"""Write the dataset's card from the campaign's facts; what only the publisher knows is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discode.mceval.rules import CRITERIA

FILL = "TO BE FILLED"
GUIDELINES = (
    f"Look at the image. Compare the two captions on {', '.join(CRITERIA)}, and choose the better "
    "one overall. There is no tie: if both are good, choose the one you would rather publish. If "
    "the image does not load or should not be shown, flag it."
)
"""What people who compare are told."""
REVISION = (
    "Correct the caption until it describes the image well: what is wrong goes, what matters and "
    "is missing comes in, one or two sentences. A caption that is right stays as it is."
)


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
    people: int
    careless: int
    answers: int
    void: int
    hours: float
    instructions: str
    study: Mapping[str, Any]
    version: str
    decisions: Sequence[Mapping[str, Any]] = ()
    """Every decision about a person, without names, and what it was made on."""


def dataset_card(facts: DatasetFacts) -> str:
    """Return the card as Markdown with the front matter that ``datasets`` reads."""
    rules = facts.rules
    agree = {
        "all": f"all {rules['people']} agree",
        "majority": f"more than half of {rules['people']} agree",
    }[rules["consensus"]]
    total = facts.domains.get("all") or next(iter(facts.domains.values()))
    files = "mceval.parquet" if facts.parquet else "mceval.jsonl"
    there = (
        "The images are in `images/`."
        if facts.images == "copy"
        else "The images are not part of this dataset: fetch each from its `source`, check its "
        "`sha256`, and put it under `images/` by its `image` name."
    )
    writers = (
        "`writers` and `reference_writer` say who wrote the captions."
        if facts.writers
        else "Who wrote a caption is not published."
    )
    lines = [
        "---",
        f"pretty_name: {json.dumps(facts.title)}",
        f"license: {json.dumps(facts.licence or 'other')}",
        "task_categories:",
        "- image-to-text",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: test",
        f"    path: {files}",
        "---",
        f"# {_line(facts.title)}",
        f"{total['images']} images in {len(facts.domains) - ('all' in facts.domains)} domains, "
        "each with two captions, a reference, and the caption that people prefer. Made with "
        f"discode {facts.version} by the rules of MCEval (Inoue et al., DISCODE, AAAI 2026).",
        "",
        "## Contents",
        "A row of `mceval.jsonl`: `id`; `image`, the image's name under `images/`; `domain`; "
        "`candidates`, two captions; `reference`; `preference`, 0 or 1, the better candidate; "
        "`votes`, how many people chose each; `source`, where the image is from; `sha256` of its "
        f"file. {writers} {there} `SHA256SUMS` has the checksum of every file, `facts.json` the "
        "numbers of this card.",
        "",
        "| domain | images | candidates | words per candidate | words per reference | discarded | "
        "Fleiss' κ | Krippendorff's α |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, row) for name, row in facts.domains.items()),
        "",
        "Discarded: the share of images judged in full on which people did not agree, with a 95 % "
        "interval. κ and α are over all judged images, discarded ones included; over the published "
        "ones alone they would be flattering.",
        "",
        "## How it was made",
        f"Per image {rules['writers']} captions were written. One of them, drawn at random, was "
        "revised by a person and became the reference. Two others, drawn at random, were compared "
        f"by {rules['people']} different people, none of whom had revised the image's caption. An "
        f"image is kept if {agree}; otherwise it was discarded and replaced by another random "
        f"image of its domain. All draws follow from the seed {rules['seed']} and the images' "
        "SHA-256.",
        "",
        f"{facts.people} people gave {facts.answers} answers in {facts.hours:g} hours. "
        f"{facts.void} answers do not count: taken back, or of the {facts.careless} people who "
        "failed gold questions or answered too quickly; their tasks were given to others. "
        "`facts.json` lists these decisions with their evidence.",
        "",
        f"Rules: `{json.dumps(facts.rules, sort_keys=True)}`",
        "",
        f"Checks: `{json.dumps(facts.checks, sort_keys=True)}`",
        "",
        "### Guidelines",
        f"Comparing: {GUIDELINES}",
        "",
        f"Revising: {REVISION}",
        *(["", f"Instructions of this campaign: {_line(facts.instructions)}"]
          if facts.instructions.strip() else []),
        "",
        *_study(facts.study),
        "## What only the publisher can say",
        f"- Licence of the captions and judgments: {_line(facts.licence) or FILL}",
        f"- Licence and origin of the images: {FILL}",
        f"- Which models wrote the captions, and with which prompt: {FILL}",
        f"- How people were recruited and paid, and who reviewed the study: {FILL}",
        f"- Known limits and uses to avoid: {FILL}",
        f"- Contact: {_line(facts.contact) or FILL}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _row(name: str, row: Mapping[str, Any]) -> str:
    rate = _share(row["discard_rate"])
    if row["discard_rate"] is not None:
        rate += f" [{_share(row['discard_low'])}, {_share(row['discard_high'])}]"
    cells = [
        _line(name).replace("|", "\\|"),
        row["images"],
        row["candidates"],
        _cell(row["candidate_words"], 2),
        _cell(row["reference_words"], 2),
        f"{rate} of {row['judged']}",
        _cell(row["fleiss_kappa"], 3),
        _cell(row["krippendorff_alpha"], 3),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _study(study: Mapping[str, Any]) -> list[str]:
    if not study["judged"]:
        return []
    return [
        "### User study",
        f"New people judged {study['images']} of the images; {_share(study['accuracy'])} "
        f"[{_share(study['low'])}, {_share(study['high'])}] of their {study['judged']} choices are "
        "the benchmark's.",
        "",
    ]


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _line(text: str) -> str:
    return " ".join(text.split())
