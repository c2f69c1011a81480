"""Write the dataset's card from the campaign's facts; what only the publisher knows is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FILL = "TO BE FILLED"


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
    rules = facts.rules
    agree = {
        "all": f"all {rules['people']} agree",
        "majority": f"more than half of {rules['people']} agree",
    }[rules["consensus"]]
    total = facts.domains.get("all") or next(iter(facts.domains.values()))
    files = "mceval.parquet" if facts.parquet else "mceval.jsonl"
    there = (
        "The images are in `images/`: one frame each, without metadata (places, cameras, comments) "
        "and otherwise as people saw them; `sha256` is that of the file they were made from."
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
        "`votes`, how many people chose each; `source`, where the image is from; `sha256` of the "
        f"file that was collected. {writers} {there} `SHA256SUMS` has the checksum of every file, "
        "`facts.json` the numbers of this card.",
        "",
        "| domain | images | candidates | words per candidate | words per reference | discarded | "
        "Fleiss' κ | Krippendorff's α |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, row) for name, row in facts.domains.items()),
        "",
        *([f"Not all is here: {'; '.join(facts.notes)}.", ""] if facts.notes else []),
        "Discarded: the share of images on which people did not agree, or that they skipped, "
        "flagged or took down, of all that they decided on, with a 95 % interval. κ and α are over "
        "all images judged in full, discarded ones included; over the published ones alone they "
        "would be flattering.",
        "",
        *_passes(facts, total),
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
        f"{_withdrawn(facts.withdrawn)}"
        "`facts.json` lists these decisions with their evidence.",
        "",
        *_second_looks(facts.second_looks),
        f"Rules: `{json.dumps(facts.rules, sort_keys=True)}`",
        "",
        f"Checks: `{json.dumps(facts.checks, sort_keys=True)}`",
        "",
        "### Guidelines",
        *_guides(facts),
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
        f"{rate} of {row['decided']}",
        _cell(row["fleiss_kappa"], 3),
        _cell(row["krippendorff_alpha"], 3),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _passes(facts: DatasetFacts, total: Mapping[str, Any]) -> list[str]:
    """Return how often people passed on an image, why, and what became of those images."""
    words = []
    for kind, found in (("skipped", facts.skip_reasons), ("flagged", facts.flag_reasons)):
        count = total["skips" if kind == "skipped" else "flags"]
        said = "; ".join(f"{_line(reason)}: {times}" for reason, times in found.items())
        words.append(f"People {kind} {count} times{f' ({said})' if said else ''}.")
    gone = total["discarded"]
    words.append(
        f"Discarded were {gone['no_consensus']} images without consensus, {gone['skipped']} that "
        f"too many skipped, {gone['flagged']} that were flagged, {gone['taken_down']} taken down "
        f"by organisers, and {gone['captions']} that nobody saw, since fewer than three of their "
        "captions differed."
    )
    equal = total["reference_equals_candidate"]
    if equal:
        words.append(f"In {equal} rows the reference became one of the candidates by its revision.")
    return [" ".join(words)]


def _withdrawn(answers: int) -> str:
    if not answers:
        return ""
    return (
        f"{answers} of these were withdrawn by the people who gave them; their texts are erased. "
    )


def _second_looks(found: Mapping[str, int]) -> list[str]:
    if not found:
        return []
    return [
        "A revision counts only because another person, who neither revised nor compared the "
        f"image's captions, accepted it: {found['accepted']} were accepted and "
        f"{found['rejected']} rejected; those captions were revised again by somebody else.",
        "",
    ]


def _guides(facts: DatasetFacts) -> list[str]:
    """Return the guides that people were shown, quoted."""
    words = "What people read before their first task, and could open again at any time:"
    if not facts.guides_kept:
        words = f"No copy of what people read was kept; discode {facts.version} would tell them:"
    lines = [words, ""]
    for number, text in enumerate(facts.guides, start=1):
        if len(facts.guides) > 1:
            lines += [f"Version {number} of {len(facts.guides)}, in the order of their use:", ""]
        lines += [*(f"> {line}" if line else ">" for line in text.splitlines()), ""]
    return lines


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
