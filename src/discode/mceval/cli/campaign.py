"""What the verbs of discode mceval share; and those that come after people's work began."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from discode.cli.output import stdout
from discode.errors import InputError, require

if TYPE_CHECKING:
    from discode.mceval.database import Database
    from discode.mceval.plan import Need
    from discode.stats.resampling import Interval

Db = Annotated[str, typer.Argument(metavar="DATABASE", help="A file, or postgresql://...")]


def open_campaign(url: str) -> Database:
    """Return the database of a campaign."""
    require("sqlalchemy", "mceval")
    from discode.mceval.database import open_database

    return open_database(url)


def table_of(*columns: str) -> Table:
    """Return an empty table, numbers to the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", justify="right" if number else "left")
    return table


def interval(found: Interval) -> str:
    """Return a share in percent with its interval."""
    if math.isnan(found.value):
        return "-"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f}–{100 * found.high:.1f})"


def number(value: float, digits: int) -> str:
    """Return a number for a table cell."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def tasks(
    database: Db,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    image_url: Annotated[
        str, typer.Option(help="Where you host the pictures: https://.../{digest}{suffix}")
    ],
    form: Annotated[str, typer.Option(help="mturk or csv.")] = "mturk",
    gold: Annotated[int, typer.Option(help="People a gold question; 0: none.")] = 9,
) -> None:
    """Write what is open as tasks for a crowd platform."""
    with open_campaign(database) as db:
        from discode.mceval.card import GUIDELINES
        from discode.mceval.crowd import crowd_tasks, write_tasks
        from discode.mceval.database import settings_of

        with db.read() as session:
            found = crowd_tasks(session, image_url, gold_assignments=gold)
            words = settings_of(session).instructions or GUIDELINES
    write_tasks(found, folder, form, words)
    asked = sum(task.assignments for task in found)
    typer.echo(f"{len(found)} tasks for {asked} answers in {folder}")


def import_(
    database: Db,
    results: Annotated[Path, typer.Argument(help="The platform's results (CSV).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Decisions; default: RESULTS.decided.csv")
    ] = None,
) -> None:
    """Read a crowd platform's results; every assignment gets a decision and a reason."""
    output = output or results.with_name(f"{results.stem}.decided.csv")
    if output.resolve() == results.resolve():
        raise InputError(f"--output {output} is also read from; give another file")
    with open_campaign(database) as db:
        from discode.mceval.crowd_import import import_results, write_decisions

        decisions = import_results(db, results, time.time())
    write_decisions(decisions, results, output)
    rejected = sum(one.decision == "reject" for one in decisions)
    used = sum(one.used for one in decisions)
    typer.echo(
        f"{len(decisions)} results: {used} used, {len(decisions) - rejected} to approve, "
        f"{rejected} to reject; see {output}"
    )


def export(
    database: Db,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    images: Annotated[str, typer.Option(help="copy them, or publish their hashes.")] = "copy",
    parquet: Annotated[bool, typer.Option("--parquet", help="Parquet as well.")] = False,
    writers: Annotated[bool, typer.Option("--writers", help="Tell who wrote what.")] = False,
    title: Annotated[str, typer.Option(help="Of the card.")] = "",
    licence: Annotated[str, typer.Option(help="Of captions and judgments.")] = "",
    contact: Annotated[str, typer.Option(help="Of the publisher.")] = "",
) -> None:
    """Write the dataset: rows, pictures, card, checksums; the same campaign, the same bytes."""
    with open_campaign(database) as db:
        from discode.mceval import export as dataset

        options = dataset.Options(images, parquet, writers, title, licence, contact)
        counts = dataset.export(db, folder, options)
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    typer.echo(f"{sum(counts.values())} images ({words}) in {folder}")
    typer.echo(f"discode bench run --benchmark mceval --data {folder} -m discode")


def plan(
    domains: Annotated[int, typer.Option(help="How many.")] = 6,
    images: Annotated[int, typer.Option(help="A domain.")] = 1000,
    people: Annotated[int, typer.Option(help="Who compare an image.")] = 3,
    consensus: Annotated[str, typer.Option(help="all or majority.")] = "all",
    revise: Annotated[str, typer.Option(help="always, or once agreed.")] = "always",
    workers: Annotated[int, typer.Option(help="People there are.")] = 81,
    accuracy: Annotated[float, typer.Option(help="How often they choose right.")] = 0.942,
    spread: Annotated[float, typer.Option(help="Its deviation between people.")] = 0.03,
    hard: Annotated[float, typer.Option(help="Share of images where they guess.")] = 0.0,
    compare_seconds: Annotated[float, typer.Option(help="A comparison.")] = 30.0,
    revise_seconds: Annotated[float, typer.Option(help="A revision.")] = 50.0,
    pay_per_hour: Annotated[float, typer.Option(help="Their pay.")] = 23.0,
    fee: Annotated[float, typer.Option(help="The platform's share on top.")] = 0.0,
    gold_rate: Annotated[float, typer.Option(help="Share of gold questions.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Simulated campaigns.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 0,
) -> None:
    """Say what a target needs; the defaults are the paper's campaign (about 6,500 USD)."""
    from discode.mceval.plan import Target, make_plan
    from discode.mceval.rules import Rules

    target = Target(
        domains, images, workers, accuracy, spread, hard, compare_seconds, revise_seconds,
        pay_per_hour, fee, gold_rate,
    )  # fmt: skip
    rules = Rules(people=people, consensus=consensus, revise=revise)
    found = make_plan(target, rules, rounds=rounds, seed=seed)
    table = table_of("", "expected", "5 %", "median", "95 %")
    needs: list[Need] = [found.expected, *found.simulated]
    for field, word in (
        ("shown", "images shown"), ("comparisons", "comparisons"), ("revisions", "revisions"),
        ("hours", "hours"), ("money", "money"), ("discard_rate", "discarded %"),
        ("wrong_rate", "kept with the wrong preference %"),
    ):  # fmt: skip
        values = [asdict(need)[field] * (100 if field.endswith("rate") else 1) for need in needs]
        table.add_row(
            word, *(f"{v:,.2f}" if field.endswith("rate") else f"{v:,.0f}" for v in values)
        )
    stdout.print(table)
    typer.echo(
        f"{domains * images:,} images of {domains} domains; {found.pool:,} in each pool fill its "
        f"quota in 95 of 100 campaigns; {found.expected.hours / workers:.1f} h a person"
    )


def study(
    database: Db,
    images: Annotated[
        int | None, typer.Option(help="Begin: so many finished images, drawn at random.")
    ] = None,
    people: Annotated[int, typer.Option(help="New people an image.")] = 1,
) -> None:
    """Let new people judge a subset; without --images, say how often they agree."""
    with open_campaign(database) as db:
        from discode.mceval.study import begin_study, study_result

        if images is not None:
            made = begin_study(db, images, time.time(), people=people)
            typer.echo(f"{made} tasks for people of the role study (discode mceval people)")
            return
        with db.read() as session:
            result = study_result(session)
    if not result.judged:
        raise InputError("nobody has judged anything in the user study; --images N begins it")
    table = table_of("domain", "people's accuracy")
    for name, found in result.domains.items():
        table.add_row(escape(name), interval(found))
    table.add_row("all", interval(result.accuracy))
    stdout.print(table)
    typer.echo(f"{result.judged} judgments of {result.images} images")
