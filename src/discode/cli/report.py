"""discode report: run logs as one page, with an explorer of every item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discode.cli import output
from discode.cli.bench import read_runs
from discode.cli.output import store_beside
from discode.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="What discode bench run -o wrote; a folder is all of it."),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", help="The page, .html.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="The benchmarks' folder: captions, references, images. Repeat."
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
    title: Annotated[str, typer.Option(help="Title of the page; default: the benchmarks.")] = "",
    resamples: Annotated[
        int, typer.Option(help="Resamples of the tests that group the metrics.")
    ] = 1000,
) -> None:
    """Write one page about runs: tables, charts, and an explorer of items."""
    from discode.report import write_report

    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output {out}: the report is a page; give a name that ends in .html")
    if not 0 <= image_budget <= 1000:
        raise InputError(f"--image-budget {image_budget:g} is not allowed; give 0 to 1000 (MB)")
    if resamples < 100:
        raise InputError(f"--resamples {resamples} is not allowed; give 100 or more")
    for folder in data or []:
        if not folder.exists():
            raise InputError(f"--data {folder}: no such folder")
    for path in store or []:
        if not path.is_file():
            raise InputError(f"--store {path}: no such file")
    output.check_writable(out)
    logs = read_runs(runs)
    with output.stderr.status("reading") as status:
        facts = write_report(
            out,
            logs,
            data=data or [],
            stores=store if store is not None else _stores_beside(runs),
            title=title,
            image_budget=round(image_budget * 2**20) if images else 0,
            resamples=resamples,
            progress=status.update,
        )
    for text in facts.notes:
        output.note(text, "dim")
    size = out.stat().st_size / 2**20
    output.note(
        f"written to {out}: {facts.items} items, {facts.images} images, distributions of "
        f"{facts.bars} pairs, {size:.1f} MB"
    )


def _stores_beside(runs: list[Path]) -> list[Path]:
    """Return the stores that bench run keeps beside its logs, those that exist."""
    logs = [
        log for path in runs for log in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    stores = [store for log in logs for store in (store_beside(log), store_beside(log.parent))]
    return list(dict.fromkeys(filter(Path.is_file, stores)))
