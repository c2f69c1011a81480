"""discode report: run logs, or score files, as one page with an explorer of every item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import output
from discode._cli.bench import read_runs
from discode._cli.compare import FailedAs, MethodOfFiles, is_scores, refuse
from discode._cli.output import store_beside
from discode.bench._systems import RESAMPLES, join_systems, label_systems
from discode.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="What discode bench run -o wrote; a folder is all of it. Or score files of "
            "captioners, as for discode compare: FILE or NAME=FILE."
        ),
    ],
    typed: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Page (.html), or a folder for report.html."
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="The benchmarks' folder: captions, references, images; or the captioners' images. "
            "Repeat.",
        ),
    ] = None,
    store: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Readings, for the distributions; default: those beside the runs."
        ),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Put small images into the page.")
    ] = True,
    image_budget: Annotated[
        float, typer.Option(help="Megabytes that images may take; greatest disagreements first.")
    ] = 12.0,
    method: MethodOfFiles = None,
    failed_as: FailedAs = None,
    title: Annotated[str, typer.Option(help="Title of the page; default: the benchmarks.")] = "",
    resamples: Annotated[
        int | None,
        typer.Option(
            help=f"Resamples of the tests that group what is compared; default: 1000, for score "
            f"files {RESAMPLES}."
        ),
    ] = None,
) -> None:
    """Write one page about runs, or captioners: tables, charts, and an explorer of items."""
    from discode._report import write_captioners, write_report

    if not output.is_folder(typed) and Path(typed).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output {typed}: the report is a page; give a name that ends in .html")
    scored = [path for path in runs if is_scores(path)]
    if scored and (len(scored) < len(runs) or store):
        raise InputError("score files go with neither run logs nor --store; make a page of each")
    if not scored:
        refuse("score files", method=method, failed_as=failed_as)
    if resamples is None:
        resamples = RESAMPLES if scored else 1000
    for option, value, low in (("image-budget", image_budget, 0), ("resamples", resamples, 100)):
        if not low <= value <= 1e6:
            raise InputError(f"--{option} {value:g} is not allowed; give {low} to 1000000")
    for option, paths in (("data", data), ("store", store)):
        for path in paths or []:
            if not path.exists():
                raise InputError(f"--{option} {path} does not exist")
    out = output.output_file(typed, "report.html")
    options: dict[str, Any] = {
        "data": data or [], "title": title, "resamples": resamples,
        "image_budget": round(image_budget * 2**20) if images else 0,
    }  # fmt: skip
    if scored:
        joined = join_systems(label_systems([*map(str, runs)]), method=method, failed_as=failed_as)
        facts = write_captioners(out, joined, **options)
    else:
        logs = read_runs(runs)
        stores = store if store is not None else _stores_beside(runs)
        with output.stderr.status("reading") as status:
            facts = write_report(out, logs, stores=stores, progress=status.update, **options)
    for text in facts.notes:
        output.note(text, "dim")
    size = out.stat().st_size / 2**20
    output.note(
        f"written to {out}: {facts.items} items, {facts.images} images, distributions of "
        f"{facts.bars} pairs, {size:.1f} MB"
    )


def _stores_beside(runs: list[Path]) -> list[Path]:
    logs = [
        log for path in runs for log in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    stores = [store for log in logs for store in (store_beside(log), store_beside(log.parent))]
    return list(dict.fromkeys(filter(Path.is_file, stores)))
