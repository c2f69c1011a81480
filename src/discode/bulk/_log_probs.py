"""Log-probabilities from other judges: rows of JSON to readings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from discode._files import parse_json, reading
from discode._scales import Scale, get_scale
from discode.bulk._tables import LINES_TO_TRUST
from discode.errors import InputError
from discode.readings import Readings, ReadingsCollector
from discode.readings._exchange import reading_from_row
from discode.readings._openai import readings_from_json

BLOCK_ROWS = 4096
"""Rows in memory at a time."""
FEW_ROWS = 8
"""Blocks with a bad row are halved down to this size, then parsed row by row."""


def read_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, row); the row of an invalid line is the error.

    A file may also be one JSON value: a row, or a list of rows.
    """
    # "-" is standard input; bytes that are not UTF-8 become a mark instead of ending the run
    source = 0 if str(file) == "-" else file
    with reading(file), open(source, encoding="utf-8-sig", errors="replace") as handle:  # noqa: PTH123  # a descriptor has no Path
        lines = ((n, line) for n, line in enumerate(handle, start=1) if line.strip())
        first = list(islice(lines, LINES_TO_TRUST))
        if first and (len(first) == 1 or _is_open(first[0][1])):
            first = [*first, *lines]
            whole = _parse_json("".join(line for _, line in first))
            if isinstance(whole, list | dict):
                yield from enumerate([whole] if isinstance(whole, dict) else whole, start=1)
                return
        rows = [(number, _parse_json(line)) for number, line in first]
        broken = all(isinstance(row, InputError) for _, row in rows)
        if broken and any("\0" in line for _, line in first):
            raise InputError(f"{file} is not text; give log-probabilities as JSON or JSON lines")
        yield from rows
        for number, line in lines:
            yield number, _parse_json(line)


def _is_open(line: str) -> bool:
    """Whether a line begins a JSON value that later lines may complete.

    >>> _is_open('{"id": [1,'), _is_open('{"id": 1, log_probs'), _is_open('{"id": 1}')
    (True, False, False)
    """
    text = line.rstrip()  # a line break inside a string is another error
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos == len(text)
    except RecursionError:
        pass
    return False


def _parse_json(text: str) -> Any:
    try:
        return parse_json(text, "the row")
    except InputError as error:
        return error


def _id(row: Any, place: int) -> str:
    fields = row if isinstance(row, dict) else {}
    names = (fields.get(key) for key in ("custom_id", "id"))  # OpenAI's batches have both
    return str(next((name for name in names if name is not None), place))


_Parts = list[tuple[Sequence[int], Readings | str]]
"""Readings of some rows by their numbers, or why a row has none."""


def read_blocks(
    rows: Iterable[tuple[int, Any]],
    scale: Scale | None,
    missing: str,
    file: Path,
    places: Counter[int],
) -> Iterator[tuple[list[str], Readings]]:
    """Yield ids and readings of numbered rows in blocks; all rows must be on one scale.

    ``places`` counts the positions of the tokens in which the answers were found.
    """
    scales: dict[Scale, None] = {}
    waiting: list[tuple[list[str], _Parts]] = []  # for a row that names the scale
    left, start = iter(rows), 0
    while block := list(islice(left, BLOCK_ROWS)):
        parts = _parse_block(block, scale, missing, places)
        waiting.append(([_id(row, start + i) for i, (_, row) in enumerate(block)], parts))
        start += len(block)
        scales |= dict.fromkeys(part.scale for _, part in parts if isinstance(part, Readings))
        if len(scales) > 1:
            raise InputError(
                f"{file} mixes the scales {', '.join(s.name for s in scales)}; "
                "use one file per scale"
            )
        for use in scales:
            yield from (_on_scale(*each, use) for each in waiting)
            waiting = []
    yield from (_on_scale(*each, scale or get_scale("ten")) for each in waiting)


def _on_scale(ids: list[str], parts: _Parts, scale: Scale) -> tuple[list[str], Readings]:
    """Join the parts of a block; rows without a reading are NaN with the reason."""
    collector = ReadingsCollector(scale, len(ids))
    for numbers, part in parts:
        collector.add(Readings.failed(scale, [part]) if isinstance(part, str) else part, numbers)
    return ids, collector.readings()


def _parse_block(
    rows: Sequence[tuple[int, Any]], scale: Scale | None, missing: str, places: Counter[int]
) -> _Parts:
    """Parse plain lists of log-probabilities together, and all other rows one by one."""
    use = scale or get_scale("ten")
    plain = [i for i, (_, row) in enumerate(rows) if _is_plain(row, len(use.answers))]
    parts: _Parts = list(_at_once(plain, rows, use))
    for i in sorted({*range(len(rows))}.difference(*(numbers for numbers, _ in parts))):
        number, row = rows[i]
        try:
            parts.append(([i], _parse(row, scale, missing, places)))
        except (InputError, TypeError, ValueError, OverflowError, AttributeError) as error:
            parts.append(([i], f"line {number}: {error}"))
    return parts


def _is_plain(row: Any, answers: int) -> bool:
    values = row.get("log_probs") if isinstance(row, dict) and "scale" not in row else None
    return type(values) is list and len(values) == answers and not isinstance(values[0], dict)


def _at_once(
    numbers: Sequence[int], rows: Sequence[tuple[int, Any]], scale: Scale
) -> Iterator[tuple[Sequence[int], Readings]]:
    """Yield the readings of plain rows with their numbers; skip a few around each bad row."""
    try:
        if numbers:
            yield numbers, Readings.of([rows[i][1]["log_probs"] for i in numbers], scale)
    except InputError:
        if (half := len(numbers) // 2) >= FEW_ROWS:
            yield from _at_once(numbers[:half], rows, scale)
            yield from _at_once(numbers[half:], rows, scale)


def _parse(row: Any, scale: Scale | None, missing: str, places: Counter[int]) -> Readings:
    if isinstance(row, InputError):
        raise row
    if not isinstance(row, dict):
        raise InputError(f"not an object but {type(row).__name__}")
    named = None if row.get("scale") is None else get_scale(str(row["scale"]))
    if named is not None and scale is not None and named != scale:
        raise InputError(f"the row is on scale {named.name!r}, but --scale is {scale.name!r}")
    use = scale or named or get_scale("ten")
    if "answer_logp" in row:
        return reading_from_row(row, use)
    parsed = readings_from_json(row.get("log_probs", row), use, missing=missing)
    if parsed is not None:
        readings, positions = parsed
        places.update(position[0] for position in positions if position is not None)
    elif "log_probs" in row:
        readings = Readings.of(row["log_probs"], use, missing=missing)
    else:
        raise InputError(f"no log_probs; the row has: {', '.join(map(str, row)) or 'nothing'}")
    if len(readings) != 1:
        raise InputError(f"log_probs holds {len(readings)} rows; give one per line")
    if readings.errors:
        raise InputError(readings.errors[0])
    return readings
