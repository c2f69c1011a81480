"""discode decode: turn log-probabilities from other judges into scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from discode._cli import flags, output
from discode._cli.score import decoders_of
from discode._judge import decode as decode_readings
from discode._scales import get_scale
from discode.bulk import Totals
from discode.bulk._chunks import SCORES
from discode.bulk._judging import at_rows
from discode.bulk._log_probs import read_blocks, read_lines
from discode.errors import InputError


def decode(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON or JSON lines (- for standard input), one row per item: a response of an "
            "OpenAI interface; or log_probs (a list over the answers, a mapping of tokens, or the "
            "part of a response that has them); or answer_logp and stem_logp. Optional: id, scale."
        ),
    ],
    method: flags.Methods = None,
    calibration: flags.Calibration = None,
    scale: flags.Scale = None,
    missing: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to fill missing answers: nan, or spread the remaining probability.",
        ),
    ] = "nan",
    typed: Annotated[
        str | None,
        flags.output_option(help=".jsonl, .csv or .parquet file, or a folder for scores.jsonl."),
    ] = None,
    as_json: flags.AsJson = False,
    show: flags.Show = False,
    signature: flags.FullSignatures = False,
) -> None:
    """Turn log-probabilities of the answers into scores."""
    decoders = decoders_of(method, calibration)
    out = None if typed is None else output.output_file(typed, SCORES)
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
