"""Export a finished campaign as a dataset: rows, images, a card, checksums.

The output does not depend on time or place: the same campaign gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from discode import __version__
from discode._files import sha256, writing
from discode.errors import InputError, StoreError, require
from mceval._checks import careless_reason
from mceval._report import (
    DomainRow,
    domain_rows,
    finding_rows,
    pass_reasons,
    person_rows,
    quota_notes,
    second_looks,
    votes_by_image,
)  # fmt: skip
from mceval._shown import check_new_folder, checked_copy
from mceval._tables import DISCARDED_BY, Candidate, Domain, GuideCopy, Image, Void
from mceval._user_study import user_study_result
from mceval.database import Database, settings_of
from mceval.people import WITHDRAWN, guide_of
from mceval.rules import normalized

IMAGES = ("copy", "hashes")
CARD = Path(__file__).with_name("card.md")


@dataclass(frozen=True)
class ExportOptions:
    """Options of the published dataset."""

    images: str = "copy"
    """"copy" the images, or publish only their "hashes" and sources."""
    parquet: bool = False
    writers: bool = False
    """Whether to publish the writers of captions."""
    title: str = ""
    licence: str = ""
    contact: str = ""
    folder: Path | None = None
    """The current folder of the images, if they were moved."""

    def __post_init__(self) -> None:
        if self.images not in IMAGES:
            raise InputError(f"unknown images={self.images!r}; allowed: {', '.join(IMAGES)}")


def export_dataset(
    db: Database, folder: Path, options: ExportOptions | None = None
) -> dict[str, int]:
    """Write the dataset into a new or empty folder; return the number of images per domain.

    :func:`~mceval._report.quota_notes` lists deviations from the quotas.
    """
    options = options or ExportOptions()
    check_new_folder(folder)
    if options.parquet:
        require("pyarrow.parquet", "parquet")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temp = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with writing(folder):
            with db.read() as session:
                counts = _write(session, temp, options)
            temp.chmod(0o755)
            if folder.exists():
                folder.rmdir()
            temp.replace(folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return counts


def _write(session: Session, folder: Path, options: ExportOptions) -> dict[str, int]:
    images = dataset_rows(session, writers=options.writers)
    if not images:
        raise InputError("no images are finished yet; see discode mceval status")
    if options.images == "copy":
        for row, image in images:
            copy = checked_copy(image, options.folder)
            row["image"] = Path(row["image"]).with_suffix(copy.suffix).as_posix()
            file = folder / "images" / row["image"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(copy.data)
    rows = [row for row, _ in images]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with (folder / "mceval.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    if options.parquet:
        pyarrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "mceval.parquet")
    facts = _facts(session, rows, options)
    words = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False)
    (folder / "facts.json").write_text(words + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(facts), encoding="utf-8")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return {name: row["images"] for name, row in facts["domains"].items() if name != "all"}


def _card(facts: Mapping[str, Any]) -> str:
    """Render the dataset's card; fields for the publisher are marked."""
    jinja2 = require("jinja2", "mceval")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    environment.filters |= {
        "json": partial(json.dumps, sort_keys=True),
        "fixed": lambda value, digits: "–" if value is None else f"{value:.{digits}f}",
        "share": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "line": lambda text: " ".join(text.split()),
    }
    template = environment.from_string(
        Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    )
    domains = facts["domains"]
    total = domains.get("all") or next(iter(domains.values()))
    return str(template.render(facts, total=total, FILL="TO BE FILLED"))


def dataset_rows(session: Session, *, writers: bool = False) -> list[tuple[dict[str, Any], Image]]:
    """List the rows of the dataset, each with its image, domain by domain.

    Each domain has up to its quota of images, the first in its random order.
    """
    votes = {image: choices for image, _, choices in votes_by_image(session)}
    texts = {row.id: row for row in session.scalars(select(Candidate)).all()}
    rows = []
    for domain in session.scalars(select(Domain).order_by(Domain.id)).all():
        done = session.scalars(
            select(Image)
            .where(Image.domain_id == domain.id, Image.state == "done")
            .order_by(Image.rank)
            .limit(domain.quota)
        ).all()
        for image in done:
            if image.first is None or image.second is None or image.revised is None:
                raise StoreError(
                    f"{image.source} is finished without drawn captions: the database is damaged"
                )
            first, second, revised = (texts[i] for i in (image.first, image.second, image.revised))
            row: dict[str, Any] = {
                "id": image.digest[:16],
                "image": f"{domain.name}/{image.digest[:16]}{Path(image.path).suffix.lower()}",
                "domain": domain.name,
                "candidates": [first.text, second.text],
                "reference": image.reference,
                "preference": image.preference,
                "votes": [votes[image.id].count(0), votes[image.id].count(1)],
                "source": image.source,
                "sha256": image.digest,
            }
            if writers:
                row["writers"] = [first.writer, second.writer]
                row["reference_writer"] = revised.writer
            rows.append((row, image))
    return rows


def _domain_facts(report: DomainRow, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    captions = [text for row in rows for text in row["candidates"]]
    return {
        "images": len(rows),
        "wanted": report.quota,
        "finished": report.done,
        "candidates": len(captions),
        "candidate_words": _words(captions),
        "reference_words": _words([row["reference"] for row in rows]),
        "first_preferred": _mean([float(row["preference"] == 0) for row in rows]),
        "judged": report.judged,
        "no_consensus_rate": _number(report.no_consensus.value),
        "decided": report.decided,
        "discarded": {why: report.discarded[why] for why in DISCARDED_BY},
        "skips": report.skips,
        "flags": report.flags,
        "reference_equals_candidate": sum(
            normalized(row["reference"]) in map(normalized, row["candidates"]) for row in rows
        ),
        "discard_rate": _number(report.discard.value),
        "discard_low": _number(report.discard.low),
        "discard_high": _number(report.discard.high),
        "fleiss_kappa": _number(report.kappa),
        "krippendorff_alpha": _number(report.alpha),
    }


def _facts(
    session: Session, rows: Sequence[Mapping[str, Any]], options: ExportOptions
) -> dict[str, Any]:
    """Collect all facts of the card, ready for JSON.

    With several domains, ``domains`` has a last row "all". ``withdrawn`` is part of ``void``.
    """
    settings, reports = settings_of(session), domain_rows(session)
    people = [row for row in person_rows(session) if row.answers]
    guides = session.scalars(
        select(GuideCopy.text).order_by(GuideCopy.created, GuideCopy.digest)
    ).all()
    study, looks = user_study_result(session), second_looks(session)
    return {
        "title": options.title or settings.name,
        "licence": options.licence,
        "contact": options.contact,
        "images": options.images,
        "parquet": options.parquet,
        "writers": options.writers,
        "rules": asdict(settings.rules),
        "checks": asdict(settings.checks),
        "domains": {
            report.name: _domain_facts(
                report, [row for row in rows if report.name in (row["domain"], "all")]
            )
            for report in reports
        },
        "notes": quota_notes(reports),
        "people": len(people),
        "careless": sum(row.state == "careless" for row in people),
        "answers": sum(row.answers for row in people),
        "void": sum(row.void for row in people),
        "withdrawn": session.scalar(select(func.count()).where(Void.reason == WITHDRAWN)) or 0,
        "skip_reasons": pass_reasons(session, "skip"),
        "flag_reasons": pass_reasons(session, "flag"),
        "hours": round(sum(row.hours for row in people), 2),
        "guides": guides or [guide_of(settings)],
        "guides_kept": bool(guides),
        "second_looks": (
            {"accepted": looks.accepted, "rejected": looks.rejected}
            if settings.rules.second_look
            else {}
        ),
        "study": {
            "images": study.images,
            "judged": study.judged,
            "accuracy": _number(study.accuracy.value),
            "low": _number(study.accuracy.low),
            "high": _number(study.accuracy.high),
        },
        "version": __version__,
        "decisions": _decisions(session),
    }


def _decisions(session: Session) -> list[dict[str, Any]]:
    """List the decisions about people with their evidence, without names.

    Organisers' free text is left out, since it may be about a person.
    """
    checks = settings_of(session).checks
    decisions = []
    for row in finding_rows(session):
        why = careless_reason(checks, row.evidence) if row.kind == "careless" else ""
        decisions.append(
            {"kind": row.kind, "reason": why or "not by a check", **asdict(row.evidence)}
        )
    return decisions


def _words(captions: Sequence[str]) -> float | None:
    return _mean([float(len(caption.split())) for caption in captions])


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _number(value: float) -> float | None:
    """Round a number for JSON, where NaN is null."""
    return None if value != value else round(value, 4)
