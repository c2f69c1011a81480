"""discode decode: turn log-probabilities from a judge of your own into scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.backends.served.parse_logprobs import readings_from_json
from discode.bulk import Totals
from discode.bulk.columns import ScoredRows
from discode.cli import output
from discode.decoders import get_decoder, without_prior
from discode.errors import InputError
from discode.files import parse_json
from discode.judge import decode as decode_readings
from discode.readings import Readings
from discode.readings.exchange import reading_from_row
from discode.scales import Scale, get_scale


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
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Scores: .jsonl, .csv, .parquet."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines instead of a table.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the first distributions.")] = False,
) -> None:
    """Turn log-probabilities of the answers into scores."""
    decoders = {name: get_decoder(name) for name in method or ["discode"]}
    output.check_output(out, file, show=show, as_json=as_json)
    if missing not in ("nan", "spread"):
        raise InputError(f"--missing {missing} is not allowed; allowed: nan, spread")
    default = None if scale is None else get_scale(scale)
    rows = _lines(file)
    if not rows:
        raise InputError(f"{file} is empty; give at least one row of log-probabilities")
    places: Counter[int] = Counter()
    readings = _all_at_once(rows, default) or _one_by_one(rows, default, missing, file, places)
    if places:
        shown = [f"{place + 1} ({count}x)" for place, count in places.most_common(5)]
        output.note(f"answers found at token {', '.join(shown)}", "dim")
    ids = [_id(row, place) for place, (_, row) in enumerate(rows)]
    results = {
        name: decode_readings(readings, decoder, missing=missing)
        for name, decoder in decoders.items()
    }
    scored = ScoredRows.without_images(None if str(file) == "-" else file.name, ids, results)
    before = {
        name: decode_readings(readings, without_prior(decoder))
        for name, decoder in (decoders if show else {}).items()
    }
    with output.open_scores(out, as_json=as_json, show=show) as write:
        write(scored, before)
    totals = Totals.of(scored)
    output.report(totals, {name: str(scores.signature) for name, scores in results.items()})
    if totals.failed:
        raise typer.Exit(1)


def _lines(file: Path) -> list[tuple[int, Any]]:
    """Return (line number, row); where a line is not JSON, the row is the error.

    A file that is JSON as a whole is one row, or a list of rows: a response may have line breaks.
    """
    try:
        # "-" is standard input; bytes that are not UTF-8 become a mark instead of ending the run
        source = 0 if str(file) == "-" else file
        with open(source, encoding="utf-8-sig", errors="replace") as handle:  # noqa: PTH123  # a descriptor has no Path
            lines = [(n, line) for n, line in enumerate(handle, start=1) if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    rows = [(number, _parse_json(line)) for number, line in lines]
    if rows and (len(rows) == 1 or isinstance(rows[0][1], InputError)):
        whole = _parse_json("".join(line for _, line in lines))
        if isinstance(whole, list):
            return list(enumerate(whole, start=1))
        if isinstance(whole, dict):
            return [(1, whole)]
    broken = all(isinstance(row, InputError) for _, row in rows)
    if broken and any("\0" in line for _, line in lines):
        raise InputError(f"{file} is not text; give log-probabilities as JSON, or as JSON lines")
    return rows


def _parse_json(text: str) -> Any:
    try:
        return parse_json(text, "the row")
    except InputError as error:
        return error


def _id(row: Any, place: int) -> str:
    for name in ("custom_id", "id"):  # OpenAI's batches have both
        if isinstance(row, dict) and row.get(name) is not None:
            return str(row[name])
    return str(place)


def _all_at_once(rows: list[tuple[int, Any]], scale: Scale | None) -> Readings | None:
    """Return the readings of a file of plain lists on one scale; None for any other file."""
    use = scale or get_scale("ten")
    for _, row in rows:
        plain = isinstance(row, dict) and type(row.get("log_probs")) is list
        if not plain or "scale" in row or len(row["log_probs"]) != len(use.answers):
            return None
    try:
        return Readings.of([row["log_probs"] for _, row in rows], use)
    except InputError:
        return None  # some row is bad: look at each


def _one_by_one(
    rows: list[tuple[int, Any]],
    scale: Scale | None,
    missing: str,
    file: Path,
    places: Counter[int],
) -> Readings:
    """Return the readings of any file; where a row has none, NaN with the reason.

    ``places`` counts which of an answer's tokens were read, where they had to be found.
    """
    parsed = [_parse(row, number, scale, missing, places) for number, row in rows]
    scales = list(dict.fromkeys(readings.scale for _, readings in parsed if readings is not None))
    if len(scales) > 1:
        raise InputError(
            f"{file} mixes the scales {', '.join(s.name for s in scales)}: scores on different "
            "scales do not compare; give each scale a file of its own"
        )
    use = scales[0] if scales else scale or get_scale("ten")
    return Readings.concat(
        use, [r if r is not None else Readings.failed(use, [why]) for why, r in parsed]
    )


def _parse(
    row: Any, number: int, scale: Scale | None, missing: str, places: Counter[int]
) -> tuple[str, Readings | None]:
    """Return a reading, or why there is none."""
    try:
        if isinstance(row, InputError):
            raise row
        if not isinstance(row, dict):
            raise InputError(f"not an object but {type(row).__name__}")
        named = None if row.get("scale") is None else get_scale(str(row["scale"]))
        if named is not None and scale is not None and named != scale:
            raise InputError(f"the row is on scale {named.name!r}, --scale says {scale.name!r}")
        return "", _reading(row, scale or named or get_scale("ten"), missing, places)
    except (InputError, TypeError, ValueError, OverflowError, AttributeError) as error:
        return f"line {number}: {error}", None


def _reading(row: dict[str, Any], scale: Scale, missing: str, places: Counter[int]) -> Readings:
    if "answer_logp" in row:
        return reading_from_row(row, scale)
    parsed = readings_from_json(row.get("log_probs", row), scale, missing=missing)
    if parsed is not None:
        readings = parsed.readings
        places.update(place[0] for place in parsed.places if place is not None)
    elif "log_probs" in row:
        readings = Readings.of(row["log_probs"], scale, missing=missing)
    else:
        raise InputError(f"no log_probs; the row has: {', '.join(map(str, row)) or 'nothing'}")
    if len(readings) != 1:
        raise InputError(f"log_probs holds {len(readings)} rows; give one per line")
    if readings.errors:
        raise InputError(readings.errors[0])
    return readings
