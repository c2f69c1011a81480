"""discode decode: log-probabilities of your own judge to scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from discode.cli import output
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.exchange import to_array
from discode.judge import decode as decode_readings
from discode.readings import Readings
from discode.scales import Scale, get_scale


def decode(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSONL, a row an item: log_probs (a list over the answers, a mapping of tokens, "
            "or OpenAI's top_logprobs list), or answer_logp and stem_logp; optionally id, scale."
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help="Repeat to compare. Options: discode:tau=alpha,sigma2=1"
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
        Path | None, typer.Option("--output", "-o", help="Write scores here (.jsonl, .csv).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines instead of a table.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Draw the first distributions.")] = False,
) -> None:
    """Turn log-probabilities of the answers into scores."""
    decoders = {name: get_decoder(name) for name in method or ["discode"]}
    output.check_output(out)
    default = None if scale is None else get_scale(scale)
    rows = list(_lines(file))
    if not rows:
        raise InputError(f"{file} is empty; give at least one row of log-probabilities")
    parsed = [_parse(row, number, default, missing) for number, row in rows]
    scales = list(dict.fromkeys(readings.scale for _, readings in parsed if readings is not None))
    if len(scales) > 1:
        raise InputError(
            f"{file} mixes the scales {', '.join(s.name for s in scales)}: scores on different "
            "scales do not compare; give one file a scale"
        )
    use = scales[0] if scales else default or get_scale("ten")
    readings = Readings.concat(
        use, [r if r is not None else Readings.failed(use, [why]) for why, r in parsed]
    )
    ids = [_id(row, number) for number, row in rows]
    results = {name: decode_readings(readings, decoder) for name, decoder in decoders.items()}
    if out is not None:
        output.write_scores(out, results, ids)
    if as_json:
        for name, scores in results.items():
            for line in scores.to_jsonl(ids):
                typer.echo(json.dumps({"method": name} | json.loads(line), ensure_ascii=False))
    elif out is None or show:
        for name, decoder in decoders.items() if show else ():
            before = decode_readings(readings, output.before_prior(decoder))
            output.show(name, results[name], before, ids, range(len(ids)))
        output.stdout.print(output.score_table(results, ids, None))
    output.finish(results, ids)


def _lines(file: Path) -> Any:
    """Yield (line number, row); a row that is not JSON is its error message."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as handle:
            for number, line in enumerate(handle, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except ValueError as error:
                        yield number, f"not JSON: {error}"
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error


def _id(row: Any, number: int) -> str:
    return (
        str(row["id"]) if isinstance(row, dict) and row.get("id") is not None else f"line {number}"
    )


def _parse(row: Any, number: int, scale: Scale | None, missing: str) -> tuple[str, Readings | None]:
    """Return a reading, or why there is none."""
    if missing not in ("nan", "spread"):
        raise InputError(f"--missing {missing} is not allowed; allowed: nan, spread")
    where = f"line {number}"
    if not isinstance(row, dict):
        why = row if isinstance(row, str) else f"no object but {type(row).__name__}"
        return f"{where}: {why}", None
    try:
        use = scale or get_scale(str(row.get("scale", "ten")))
        if "answer_logp" in row:
            shape = (1, len(use.stems), len(use.answers))
            answers = to_array(row["answer_logp"])
            stems = to_array(row.get("stem_logp") or [None] * len(use.stems))
            if answers.size != shape[1] * shape[2]:
                raise InputError(f"answer_logp has {answers.size} values, not {shape[1:]}")
            return "", Readings(use, answers.reshape(shape), stems.reshape(1, -1))
        if "log_probs" not in row:
            raise InputError(f"no log_probs; the row has: {', '.join(map(str, row)) or 'nothing'}")
        readings = Readings.of(row["log_probs"], use, missing=missing)
        if len(readings) != 1:
            raise InputError(f"log_probs holds {len(readings)} rows; give one a line")
        if readings.errors:
            raise InputError(readings.errors[0])
        return "", readings
    except (InputError, TypeError, ValueError, AttributeError) as error:
        return f"{where}: {error}", None
