"""The card of a judge: its figures for every question, with intervals; stored as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from discode._files import parse_json, replacing, without_nan
from discode._signature import shortened_signature
from discode.bench._agreement import TAU_C_NOTES, AgreementProtocol
from discode.bench._layout import CellTable, ColumnTitle, TableValue
from discode.errors import InputError, count_of
from discode.stats import Interval

FORMAT, VERSION = "discode-card", 1
CARD = "card.json"
"""The file of a card in its folder."""
HELP = "discode probe ... -o FOLDER makes one"


@dataclass(frozen=True)
class Figure:
    """A row of a card; ``section`` is the quantity and its unit.

    Attributes:
        n: Images, readings or judgments behind the value; ``grey_n`` those behind ``grey``.
        failed: Those that are left out, as not all of their captions could be judged.
        grey: The same with a grey image: the effect of the words alone. None if not measured.
    """

    section: str
    name: str
    value: Interval
    n: int
    failed: int
    grey: Interval | None = None
    grey_n: int = 0

    def counts(self) -> str:
        """Format how many there are, and how many with a grey image if that differs."""
        apart = self.grey is not None and self.grey_n != self.n
        return f"{self.n:,}" + (f", {self.grey_n:,} grey" if apart else "")


@dataclass(frozen=True)
class Card:
    """The measurements of a judge on a benchmark's images and references.

    Attributes:
        asked: The SHA-256 of all captions and images: cards with equal ones can be compared.
        readings: How many captions were read, with an image and with a grey one.
        errors: Why captions could not be judged, and how many.
    """

    model: str
    signature: str
    benchmark: str
    protocol: AgreementProtocol
    checksums: Mapping[str, str]
    asked: str
    images: int
    readings: int
    errors: Mapping[str, int]
    figures: tuple[Figure, ...]

    def save(self, path: Path) -> None:
        """Write the card, completely or not at all."""
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps(without_nan(data), ensure_ascii=False, indent=1) + "\n"
        with replacing(path) as temp:
            temp.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Card:
        """Read a card from its file or folder; the error gives the reason if it cannot be read."""
        path = Path(path)
        path = path / CARD if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no such card: {path}; {HELP}")
        try:
            data: Any = parse_json(path.read_text(encoding="utf-8"), path.name)
            if data.pop("format") != FORMAT or data.pop("version") != VERSION:
                raise ValueError("another format or version")
            figures = [
                Figure(**{**row, "value": _interval(row["value"]), "grey": _interval(row["grey"])})
                for row in data.pop("figures")
            ]
            protocol = AgreementProtocol.read(data.pop("protocol"))
            return cls(**data, protocol=protocol, figures=tuple(figures))
        except (InputError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is not a card ({error}); {HELP}") from None

    def notes(self, *, full: bool = True) -> list[str]:
        """Describe the data and the method behind the figures; ``full`` is for the signature."""
        lines = [
            f"{self.benchmark}, {count_of(self.images, 'image')}, {self.readings:,} readings, "
            f"seed {self.protocol.seed}; shares of images have Wilson's interval, all else that of "
            f"{self.protocol.resamples:,} resamples of images. Grey image: what the words alone do."
        ]
        if any(figure.name.endswith("τ_c") for figure in self.figures):
            lines.append(TAU_C_NOTES[self.protocol.tau_m])
        if self.errors:
            reason, count = max(self.errors.items(), key=lambda item: item[1])
            failed = count_of(sum(self.errors.values()), "caption")
            lines.append(f"{failed} could not be judged, {count:,} of them: {reason}")
        return [*lines, self.signature if full else shortened_signature(self.signature)]


def cards_table(cards: Mapping[str, Card], *, full: bool = True) -> CellTable:
    """Tabulate one card, or several side by side, with their ``full`` or short signatures."""
    columns: list[ColumnTitle] = [""]
    found: dict[str, dict[str, dict[str, Figure]]] = {}  # by section, name and card
    failing = any(figure.failed for card in cards.values() for figure in card.figures)
    for label, card in cards.items():
        titles = ["image", "grey image", "n", *(["failed"] if failing else [])]
        columns += titles if len(cards) == 1 else [(label, title) for title in titles]
        for figure in card.figures:
            found.setdefault(figure.section, {}).setdefault(figure.name, {})[label] = figure
    rows: list[Sequence[TableValue]] = []
    for section, names in found.items():
        rows.append([section])
        for name, figures in names.items():
            cells: list[TableValue] = []
            for label in cards:
                one = figures.get(label)
                row = (one.value, one.grey, one.counts(), f"{one.failed:,}") if one else (None,) * 4
                cells += row[: 3 + failing]
            rows.append([f"  {name}", *cells])
    if len(cards) == 1:
        return CellTable(columns, rows, f"Card of {card.model}", card.notes(full=full), 1)
    notes = [f"{label}: {line}" for label, card in cards.items() for line in card.notes(full=full)]
    if len({card.asked for card in cards.values()}) > 1:
        notes.insert(0, "These cards are not comparable: data, images, seed or version differ.")
    return CellTable(columns, rows, "", notes, 1)


def _interval(fields: Mapping[str, Any] | None) -> Interval | None:
    """Restore a saved interval; None in it is NaN."""
    if fields is None:
        return None
    numbers: dict[str, Any] = {name: math.nan if x is None else x for name, x in fields.items()}
    return Interval(**numbers)
