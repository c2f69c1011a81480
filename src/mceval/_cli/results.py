"""Verbs for the results of a campaign: backup, user study, export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from discode._cli import flags
from discode._cli.output import echo, note, stdout
from discode.errors import InputError
from mceval._cli.common import (
    DatabaseArgument,
    interval_cell,
    make_table,
    open_campaign,
)


def backup(
    database: DatabaseArgument,
    file: Annotated[Path, Argument(help="A new file.")],
) -> None:
    """Copy the campaign into a file, even while people work."""
    with open_campaign(database) as db:
        from mceval.database import backup_campaign

        answers = backup_campaign(db, file)
    echo(f"{answers} answers in {file}")


def study(
    database: DatabaseArgument,
    draw: Annotated[
        int | None, Option(metavar="N", help="Begin with N finished images, drawn at random.")
    ] = None,
    people: Annotated[int, Option(help="People per image.")] = 1,
) -> None:
    """Let new people judge a subset of images; without --draw, show how often they agree."""
    with open_campaign(database) as db:
        from mceval._user_study import begin_user_study, user_study_result

        if draw is not None:
            slots = begin_user_study(db, draw, time.time(), people=people)
            echo(f"{slots} tasks; next: discode mceval people invite --role study")
            return
        with db.read() as session:
            result = user_study_result(session)
    if not result.judged:
        raise InputError("the user study has no judgments yet; begin it with --draw N")
    table = make_table("domain", "people's accuracy")
    for name, accuracy in result.domains.items():
        table.add_row(escape(name), interval_cell(accuracy))
    table.add_row("all", interval_cell(result.accuracy))
    stdout.print(table)
    echo(f"{result.judged} judgments of {result.images} images")


def export(
    database: DatabaseArgument,
    folder: Annotated[Path, Argument(help="A new folder.")],
    publish: Annotated[
        str, Option(metavar="NAME", help="Publish a copy of the images, or only their hashes.")
    ] = "copy",
    images: flags.Images = None,
    parquet: Annotated[bool, Option("--parquet", help="Also write Parquet.")] = False,
    publish_writers: Annotated[
        bool, Option("--publish-writers", help="Publish who wrote each caption.")
    ] = False,
    title: flags.Title = "",
    licence: Annotated[str, Option(help="Licence of captions and judgments.")] = "",
    contact: Annotated[str, Option(help="Contact of the publisher.")] = "",
) -> None:
    """Write the dataset: rows, images, card and checksums, reproducible to the byte."""
    with open_campaign(database) as db:
        from mceval._report import domain_rows, quota_notes
        from mceval.export import ExportOptions, export_dataset

        options = ExportOptions(publish, parquet, publish_writers, title, licence, contact, images)
        counts = export_dataset(db, folder, options)
        with db.read() as session:
            notes = quota_notes(domain_rows(session))
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    echo(f"{sum(counts.values())} images ({listed}) in {folder}")
    for words in notes:
        note(words, "yellow")
    echo(f"discode bench run --benchmark mceval --data {folder} -m discode")
