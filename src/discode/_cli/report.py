"""discode report: run logs, or score files, as one page with an explorer of every item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import flags, output
from discode._cli.compare import is_scores, refuse
from discode._cli.output import store_beside
from discode._probe import Card
from discode.bench._runlog import find_runs, read_runs
from discode.bench._systems import RESAMPLES, join_systems, label_systems
from discode.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Run logs from `bench run -o`; a folder means every log in it. Or score files of "
            "captioners, as for `discode compare`: FILE or NAME=FILE.",
        ),
    ],
    typed: Annotated[
        str,
        flags.output_option(
            help="Page (.html), folder for report.html, or leaderboard of runs (.md, .json)."
        ),
    ],
    card: Annotated[
        list[Path] | None,
        flags.input_flag(
            metavar="FOLDER", help="Card of a judge, from `discode probe -o`; repeatable."
        ),
    ] = None,
    data: flags.DataFolders = None,
    images: flags.Images = None,
    method: flags.MethodIfAny = None,
    failed_as: flags.FailedAs = None,
    store: flags.Stores = None,
    image_budget: Annotated[
        float,
        flags.output_flag(
            metavar="MB",
            help="Megabytes of images to embed, greatest disagreements first; 0 for none.",
        ),
    ] = 12.0,
    title: flags.Title = "",
    resamples: flags.ResamplesIfAny = None,
) -> None:
    """Write a page about runs or captioners: tables, charts, and an explorer of all items."""
    from discode._report import BOARDS, write_captioners, write_report

    scored = [path for path in runs if is_scores(path)]
    suffixes = (".html", ".htm", *(BOARDS if not scored else ()))
    if not output.is_folder(typed) and Path(typed).suffix.lower() not in suffixes:
        raise InputError(
            f"--output {typed} ends in none of {', '.join(suffixes)}"
            + ("; leaderboards (.md, .json) require run logs" if scored else "")
        )
    if scored and (len(scored) < len(runs) or store):
        raise InputError("score files cannot be combined with run logs or --store")
    if scored:
        refuse("run logs", data=data, card=card)
    else:
        refuse("score files", method=method, failed_as=failed_as, images=images)
    if resamples is None:
        resamples = RESAMPLES if scored else 1000
    for option, value, low in (("image-budget", image_budget, 0), ("resamples", resamples, 100)):
        if not low <= value <= 1e6:
            raise InputError(f"--{option} {value:g} is not allowed; give {low} to 1000000")
    for option, paths in (("data", data), ("images", images and [images]), ("store", store)):
        for path in paths or []:
            if not path.exists():
                raise InputError(f"--{option} {path} does not exist")
    out = output.output_file(typed, "report.html")
    options: dict[str, Any] = {
        "data": [images] if images else data or [], "title": title, "resamples": resamples,
        "image_budget": round(image_budget * 2**20),
    }  # fmt: skip
    if scored:
        joined = join_systems(label_systems([*map(str, runs)]), method=method, failed_as=failed_as)
        facts = write_captioners(out, joined, **options)
    else:
        logs = read_runs(runs)
        stores = store if store is not None else _stores_beside(runs)
        with output.stderr.status("reading") as status:
            facts = write_report(
                out, logs, stores=stores, progress=status.update, **options,
                cards={str(path): Card.load(path) for path in card or ()},
            )  # fmt: skip
    for text in facts.notes:
        output.note(text, "dim")
    if out.suffix.lower() in BOARDS:
        output.note(f"written to {out}: a leaderboard of {facts.items} items")
        return
    size = out.stat().st_size / 2**20
    output.note(
        f"written to {out}: {facts.items} items, {facts.images} images, distributions of "
        f"{facts.bars} pairs, {size:.1f} MB"
    )


def _stores_beside(runs: list[Path]) -> list[Path]:
    logs = find_runs(runs)
    stores = [store for log in logs for store in (store_beside(log), store_beside(log.parent))]
    return list(dict.fromkeys(filter(Path.is_file, stores)))
