"""discode decode: turn log-probabilities from a judge of your own into scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import output
from discode._files import parse_json, reading
from discode._judge import decode as decode_readings
from discode._scales import Scale, get_scale
from discode.bulk import Totals
from discode.bulk._judging import at_rows
from discode.bulk._tables import LINES_TO_TRUST
from discode.decoders import SIDE_BY_SIDE, get_decoder
from discode.errors import InputError
from discode.readings import Readings, ReadingsCollector
from discode.readings._exchange import reading_from_row
from discode.readings._openai import readings_from_json

BLOCK_ROWS = 4096
"""Rows that are in memory at once."""
FEW_ROWS = 8
"""Rows among which a bad one is not searched further: each is parsed for itself."""


def decode(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSONL or JSON (- reads standard input), one row per item: a response of OpenAI's "
            "interfaces as it came; or log_probs (a list over the answers, a mapping of tokens, "
            "or any part of a response that has them), or answer_logp and stem_logp; optionally "
            "id, scale."
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            help="Repeat to compare. Options: discode:tau=alpha,sigma2=1",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", "-s", help="ten (default), five, letters, unit, 1-7, E-A"),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Answers a mapping lacks: nan, or spread the mass it leaves.")
    ] = "nan",
    typed: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Scores: .jsonl, .csv, .parquet, or a folder for scores.jsonl.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines instead of a table.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the first distributions.")] = False,
    signature: output.FullSignatures = False,
) -> None:
    """Turn log-probabilities of the answers into scores."""
    decoders = {name: get_decoder(name) for name in method or SIDE_BY_SIDE[-1:]}
    out = None if typed is None else output.output_file(typed, "scores.jsonl")
    if out is not None or show:
        output.check_output(out, file, show=show, as_json=as_json)
    if missing not in ("nan", "spread"):
        raise InputError(f"--missing {missing} is not allowed; allowed: nan, spread")
    default = None if scale is None else get_scale(scale)
    source = None if str(file) == "-" else file.name
    places: Counter[int] = Counter()
    totals, signatures = Totals(), dict[str, str]()
    with output.open_scores(out, as_json=as_json, show=show) as write:
        for ids, readings in read_blocks(read_lines(file), default, missing, file, places):
            results = {
                name: decode_readings(readings, decoder, missing=missing)
                for name, decoder in decoders.items()
            }
            scored = at_rows(results, source, totals.rows, ids)
            write(scored)
            totals += Totals.of(scored)
            signatures = {name: str(scores.signature) for name, scores in results.items()}
        if not totals.rows:
            raise InputError(f"{file} is empty; give at least one row of log-probabilities")
    if places:
        shown = [f"{place + 1} ({count}x)" for place, count in places.most_common(5)]
        output.note(f"answers found at token {', '.join(shown)}", "dim")
    output.report(totals, signatures, full=signature)


def read_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, row); where a line is not JSON, the row is the error.

    A file that is JSON as a whole is one row, or a list of rows: a response may have line breaks.
    """
    # "-" is standard input; bytes that are not UTF-8 become a mark instead of ending the run
    source = 0 if str(file) == "-" else file
    with reading(file), open(source, encoding="utf-8-sig", errors="replace") as handle:  # noqa: PTH123  # a descriptor has no Path
        lines = ((n, line) for n, line in enumerate(handle, start=1) if line.strip())
        first = list(islice(lines, LINES_TO_TRUST))
        if first and (len(first) == 1 or _goes_on(first[0][1])):
            first = [*first, *lines]
            whole = _parse_json("".join(line for _, line in first))
            if isinstance(whole, list | dict):
                yield from enumerate([whole] if isinstance(whole, dict) else whole, start=1)
                return
        rows = [(number, _parse_json(line)) for number, line in first]
        broken = all(isinstance(row, InputError) for _, row in rows)
        if broken and any("\0" in line for _, line in first):
            raise InputError(
                f"{file} is not text; give log-probabilities as JSON, or as JSON lines"
            )
        yield from rows
        for number, line in lines:
            yield number, _parse_json(line)


def _goes_on(line: str) -> bool:
    """Whether a line is the beginning of JSON that the next lines may complete.

    >>> _goes_on('{"id": [1,'), _goes_on('{"id": 1, log_probs'), _goes_on('{"id": 1}')
    (True, False, False)
    """
    text = line.rstrip()  # a line break inside a text is an error of its own
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
    """Yield the ids and the readings of numbered rows, some at a time; all are on one scale.

    ``places`` counts which of an answer's tokens were read, where they had to be found.
    """
    scales: dict[Scale, None] = {}
    waiting: list[tuple[list[str], _Parts]] = []  # for a row that says what the scale is
    left, start = iter(rows), 0
    while block := list(islice(left, BLOCK_ROWS)):
        parts = _parse_block(block, scale, missing, places)
        waiting.append(([_id(row, start + i) for i, (_, row) in enumerate(block)], parts))
        start += len(block)
        scales |= dict.fromkeys(part.scale for _, part in parts if isinstance(part, Readings))
        if len(scales) > 1:
            raise InputError(
                f"{file} mixes the scales {', '.join(s.name for s in scales)}: scores on different "
                "scales do not compare; give each scale a file of its own"
            )
        for use in scales:
            yield from (_on_scale(*each, use) for each in waiting)
            waiting = []
    yield from (_on_scale(*each, scale or get_scale("ten")) for each in waiting)


def _on_scale(ids: list[str], parts: _Parts, scale: Scale) -> tuple[list[str], Readings]:
    """Return the ids and the readings; where a row has none, NaN with the reason."""
    collector = ReadingsCollector(scale, len(ids))
    for numbers, part in parts:
        collector.add(Readings.failed(scale, [part]) if isinstance(part, str) else part, numbers)
    return ids, collector.readings()


def _parse_block(
    rows: Sequence[tuple[int, Any]], scale: Scale | None, missing: str, places: Counter[int]
) -> _Parts:
    """Parse rows: plain lists of log-probabilities together, all others one by one."""
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
    """Yield the readings of plain rows with their numbers, without a few around each bad one."""
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
        raise InputError(f"the row is on scale {named.name!r}, --scale says {scale.name!r}")
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
