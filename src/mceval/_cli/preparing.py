"""Verbs before people work: plan a campaign, begin it, add captions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from discode._cli import flags
from discode._cli.flags import model_options
from discode._cli.output import echo, note, progress, stdout
from discode.errors import InputError, lookup, require
from mceval._checks import Checks
from mceval._cli.common import (
    DatabaseArgument,
    Domains,
    Gold,
    GoldRate,
    GoldRateIfAny,
    PayPerHour,
    make_table,
    number_cell,
    open_campaign,
)
from mceval.plan import Target, make_plan
from mceval.rules import Rules

if TYPE_CHECKING:
    from mceval._intake import DomainSource
    from mceval.database import Database


@flags.with_options("rules", Rules, "people", "consensus", "revise")
@flags.with_options(
    "target", Target, "domains", "accuracy", "spread", "hard", "look_seconds", "fee",
    images="per_domain", workers="annotators",
)  # fmt: skip
def plan(
    compare_seconds: Annotated[
        float | None, Option(help="Seconds per comparison; default: 30.")
    ] = None,
    revise_seconds: Annotated[
        float | None, Option(help="Seconds per revision; default: 50.")
    ] = None,
    from_campaign: Annotated[
        str | None, Option("--from", metavar="DATABASE", help="Campaign with measured times.")
    ] = None,
    pay_per_hour: PayPerHour = 23.0,
    gold_rate: GoldRate = 0.0,
    rounds: Annotated[int, Option(help="Number of simulated campaigns.")] = 100,
    seed: flags.Seed = 0,
    *,
    target: dict[str, Any],
    rules: dict[str, Any],
) -> None:
    """Estimate the work and cost of a campaign; the defaults are those of the paper."""
    times = _times(from_campaign, compare_seconds=compare_seconds, revise_seconds=revise_seconds)
    planned = Target(pay_per_hour=pay_per_hour, gold_rate=gold_rate, **target, **times)
    estimate = make_plan(planned, Rules(**rules), rounds=rounds, seed=seed)
    table = make_table("", "expected", "5 %", "median", "95 %")
    for field, word in (
        ("shown", "images shown"), ("comparisons", "comparisons"), ("revisions", "revisions"),
        ("hours", "hours"), ("money", "money"), ("discard_rate", "discarded %"),
        ("wrong_rate", "kept with the wrong preference %"),
    ):  # fmt: skip
        values = [getattr(need, field) for need in (estimate.expected, *estimate.simulated)]
        rate = field.endswith("rate")
        table.add_row(word, *(f"{100 * v:,.2f}" if rate else f"{v:,.0f}" for v in values))
    stdout.print(table)
    hours, images = estimate.expected.hours / planned.workers, planned.domains * planned.images
    echo(f"{images:,} images of {planned.domains} domains; {estimate.pool:,} in each pool "
         f"fill its quota in 95 of 100 campaigns; {hours:.1f} h per person")  # fmt: skip


def _times(from_campaign: str | None, **options: float | None) -> dict[str, Any]:
    times = {name: seconds for name, seconds in options.items() if seconds is not None}
    if from_campaign is None:
        return times
    with open_campaign(from_campaign) as db:
        from mceval._report import task_timings

        with db.read() as session:
            measured = task_timings(session)
    for name, count in (
        ("compare_seconds", measured.compared),
        ("revise_seconds", measured.revised),
    ):
        if name not in times and not count:
            option = name.replace("_", "-")
            raise InputError(f"{from_campaign} has no such tasks to measure; give --{option}")
    echo(
        f"times of {from_campaign}: {measured.compared:,} comparisons of "
        f"{number_cell(measured.compare_seconds, 1)} s, {measured.revised:,} revisions of "
        f"{number_cell(measured.revise_seconds, 1)} s (means)"
    )
    return {name: getattr(measured, name) for name in options} | times


PROTOCOLS: dict[str, dict[str, Any]] = {
    "checked": {},
    "paper": {"near": -1, "gold_rate": 0.0, "quick_seconds": 0.0, "skips": 0},
}
"""Rules and checks of each --protocol that differ from the defaults."""


@flags.with_options("rules", Rules, "people", "consensus", "writers", "revise", "second_look")
def init(
    database: DatabaseArgument,
    domain: Domains,
    per_domain: Annotated[int, Option(help="Images per domain.")] = 1000,
    seed: flags.Seed = 0,
    protocol: Annotated[
        str, Option(metavar="NAME", help="checked, or paper (without checks beyond the paper).")
    ] = "checked",
    near: Annotated[
        int | None, Option(help="Bits of 256 in which copies differ; -1 for off.")
    ] = None,
    gold: Gold = None,
    gold_rate: GoldRateIfAny = None,
    quick_seconds: Annotated[
        float | None, Option(help="Seconds below which answers are careless.")
    ] = None,
    lease_minutes: Annotated[
        float, Option(help="Minutes that a task is reserved for a person.")
    ] = 15.0,
    pay_per_hour: PayPerHour = 0.0,
    name: Annotated[str, Option(help="Name of the campaign.")] = "mceval",
    instructions: Annotated[
        Path | None, Option(metavar="FILE", help="Text that people read before they begin.")
    ] = None,
    *,
    rules: dict[str, Any],
) -> None:
    """Begin a campaign; duplicate and broken images are skipped."""
    require("sqlalchemy", "mceval")
    from mceval._intake import begin_campaign, list_images, read_text

    options = {"near": near, "gold_rate": gold_rate, "quick_seconds": quick_seconds}
    settings = lookup(PROTOCOLS, protocol, "protocol") | {
        option: value for option, value in options.items() if value is not None
    }
    if gold is not None and settings.get("gold_rate") == 0 and gold_rate is None:
        raise InputError(
            f"--protocol {protocol} has no gold questions; --gold requires --gold-rate"
        )
    checks = Checks(**{n: settings.pop(n) for n in ("gold_rate", "quick_seconds") if n in settings})
    chosen = Rules(seed, **rules, **settings)
    sources = [read_domain(text, per_domain) for text in domain]
    total = sum(len(list_images(source)) for source in sources)  # mistakes show before the database
    now = time.time()
    with begin_campaign(
        database, chosen, name=name, checks=checks, lease_seconds=lease_minutes * 60, now=now,
        pay_per_hour=pay_per_hour, instructions=read_text(instructions) if instructions else "",
    ) as db:  # fmt: skip
        _fill(db, sources, total, gold, now)
    note(chosen.consensus_text(), "dim")


def _fill(
    db: Database, sources: Sequence[DomainSource], total: int, gold: Path | None, now: float
) -> None:
    """Add images and gold questions to a new campaign, and report doubts."""
    from mceval._intake import add_images
    from mceval._stalls import find_doubts

    with progress() as bar:
        task = bar.add_task("", total=total)
        counts = add_images(
            db, sources, now=now, progress=lambda done: bar.update(task, completed=done)
        )
    if gold is not None:
        add_gold_questions(db, gold, now)
    table = make_table("domain", "wanted", "pool", "duplicates", "unreadable")
    for source in sources:
        states = counts[source.name]
        cells = [states.get(state, 0) for state in ("pool", "duplicate", "unreadable")]
        table.add_row(escape(source.name), str(source.quota), *map(str, cells))
        if cells[0] < source.quota:
            note(f"{source.name}: {cells[0]} images for a quota of {source.quota}", "yellow")
    with db.read() as session:
        doubts = find_doubts(session)
    stdout.print(table)
    for doubt in doubts:
        note(f"{doubt.what}; {doubt.cure}", "yellow")


def add_gold_questions(db: Database, table: Path, now: float) -> None:
    from mceval._intake import add_gold

    added = add_gold(db, table, now)
    echo(f"{added.questions} gold questions")
    for warning in added.warnings():
        note(warning, "yellow")


def read_domain(text: str, quota: int) -> DomainSource:
    from mceval._intake import DomainSource

    name, equals, path = text.partition("=")
    if not equals or not path:
        raise InputError(f"--domain {text!r} must be NAME=FOLDER or NAME=LIST")
    name, colon, count = name.partition(":")
    if colon:
        if not count.isdigit():
            raise InputError(f"--domain {text!r}: {count!r} is not a number of images")
        quota = int(count)
    return DomainSource(name, Path(path), quota)


def candidates(
    database: DatabaseArgument,
    writer: Annotated[str, Option(help="Writer of the captions; not shown to people.")],
    file: Annotated[Path | None, Option(help="Table of image and caption.")] = None,
    annotations: flags.Annotations = None,
    model: flags.Model = None,
    model_option: flags.ModelOption = None,
    base_url: flags.BaseUrl = None,
    request: Annotated[
        str | None, Option(metavar="TEXT", help="Text that asks the model for a caption.")
    ] = None,
    spare: Annotated[float, Option(help="Extra images to caption, as a share of the quota.")] = 0.5,
    replace: Annotated[
        bool, Option("--replace", help="Overwrite captions of --file that no one has seen yet.")
    ] = False,
) -> None:
    """Add the captions of a writer from a file, or a model (openai:NAME, endpoint:NAME).

    The same command resumes an interrupted run.
    """
    options = model_options(model_option, base_url=base_url)
    if (file is None) == (model is None):
        raise InputError("give either --file or --model")
    if annotations is not None and file is None:
        raise InputError("--annotations requires --file")
    if (replace and file is None) or (options and model is None):
        raise InputError("--replace requires --file; model options require --model")
    with open_campaign(database) as db:
        from mceval import _candidates as captions

        if file is not None:
            added = captions.add_captions(
                db, writer, file, time.time(), replace=replace, annotations=annotations
            )
        else:
            chat = captions.open_caption_writer(model or "", options)
            with progress() as bar:
                task = bar.add_task("", total=None)
                added = captions.write_captions(
                    db, writer, chat, now=time.time, spare=spare, prompt=request or captions.PROMPT,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )  # fmt: skip
    echo(f"{added.new} captions of {writer}" + "".join(
        f", {count} {word}"
        for count, word in ((added.replaced, "replaced"), (added.known, "known"),
                            (added.unknown, "of images not in the campaign"))
        if count
    ))  # fmt: skip
    for warning in added.warnings():
        note(warning, "yellow")
    failed = dict(added.failed or {})
    for source, why in list(failed.items())[:5]:
        note(f"failed: {source}: {why}", "red")
    if failed:
        note(f"{len(failed)} images failed; the same command tries again")
        raise typer.Exit(1)
