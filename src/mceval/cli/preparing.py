"""Verbs before people work: plan a campaign, begin it with images, add captions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from discode.cli.model_options import BaseUrl, ModelOption, model_options
from discode.cli.output import echo, progress, stderr, stdout
from discode.errors import InputError, lookup, require
from mceval.cli.common import DatabaseArgument, make_table, number_cell, open_campaign

if TYPE_CHECKING:
    from mceval.database import Database
    from mceval.intake import DomainSource
    from mceval.plan import Need


def plan(
    domains: Annotated[int, typer.Option(help="How many domains.")] = 6,
    images: Annotated[int, typer.Option(help="Images per domain.")] = 1000,
    people: Annotated[int, typer.Option(help="How many people compare each image.")] = 3,
    consensus: Annotated[str, typer.Option(help="all or majority.")] = "all",
    revise: Annotated[str, typer.Option(help="always, or once agreed.")] = "always",
    workers: Annotated[int, typer.Option(help="How many people take part.")] = 81,
    accuracy: Annotated[float, typer.Option(help="How often they choose right.")] = 0.942,
    spread: Annotated[float, typer.Option(help="Its deviation between people.")] = 0.03,
    hard: Annotated[float, typer.Option(help="Share of images on which they guess.")] = 0.0,
    compare_seconds: Annotated[
        float | None, typer.Option(help="Time of a comparison.", show_default="30")
    ] = None,
    revise_seconds: Annotated[
        float | None, typer.Option(help="Time of a revision.", show_default="50")
    ] = None,
    look_seconds: Annotated[
        float, typer.Option(help="Time of a second look at a revision; 0: none.")
    ] = 0.0,
    from_campaign: Annotated[
        str | None,
        typer.Option("--from", metavar="DATABASE", help="Take both times from this campaign."),
    ] = None,
    pay_per_hour: Annotated[float, typer.Option(help="Their pay.")] = 23.0,
    fee: Annotated[float, typer.Option(help="The platform's share on top.")] = 0.0,
    gold_rate: Annotated[float, typer.Option(help="Share of gold questions.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Simulated campaigns.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
) -> None:
    """Estimate what a campaign needs; the defaults are the paper's (about 6,500 USD)."""
    from mceval.plan import Target, make_plan
    from mceval.rules import Rules

    compare, revised = _seconds(compare_seconds, revise_seconds, from_campaign)
    target = Target(
        domains, images, workers, accuracy, spread, hard, compare, revised, look_seconds,
        pay_per_hour, fee, gold_rate,
    )  # fmt: skip
    rules = Rules(people=people, consensus=consensus, revise=revise)
    found = make_plan(target, rules, rounds=rounds, seed=seed)
    table = make_table("", "expected", "5 %", "median", "95 %")
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
    echo(
        f"{domains * images:,} images of {domains} domains; {found.pool:,} in each pool fill its "
        f"quota in 95 of 100 campaigns; {found.expected.hours / workers:.1f} h per person"
    )


def _seconds(
    compare: float | None, revise: float | None, from_campaign: str | None
) -> tuple[float, float]:
    """Return the times of a task: as given, else as measured in a campaign, else the defaults."""
    from mceval.plan import Target

    if from_campaign is None:
        usual = Target()
        return (
            usual.compare_seconds if compare is None else compare,
            usual.revise_seconds if revise is None else revise,
        )
    with open_campaign(from_campaign) as db:
        from mceval.report import task_timings

        with db.read() as session:
            found = task_timings(session)
    for given, count, option, word in (
        (compare, found.compared, "--compare-seconds", "comparisons"),
        (revise, found.revised, "--revise-seconds", "revisions"),
    ):
        if given is None and not count:
            raise InputError(f"{from_campaign} has no {word} to take the time from; give {option}")
    seconds = (
        found.compare_seconds if compare is None else compare,
        found.revise_seconds if revise is None else revise,
    )
    echo(
        f"times of {from_campaign}: {found.compared:,} comparisons of "
        f"{number_cell(found.compare_seconds, 1)} s, {found.revised:,} revisions of "
        f"{number_cell(found.revise_seconds, 1)} s (means)"
    )
    return seconds


@dataclass(frozen=True)
class Protocol:
    """What a campaign checks unless options say otherwise."""

    near: int
    gold_rate: float
    quick_seconds: float
    skips: int


PROTOCOLS = {
    "checked": Protocol(near=6, gold_rate=0.1, quick_seconds=2.0, skips=5),
    "paper": Protocol(near=-1, gold_rate=0.0, quick_seconds=0.0, skips=0),
}
"""By the name that --protocol takes; docs/mceval.md says what the paper names and what not."""


def init(
    database: DatabaseArgument,
    domain: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A folder or a list of images; NAME:COUNT=... for its own count.",
        ),
    ],
    per_domain: Annotated[int, typer.Option(help="How many images a domain should have.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
    people: Annotated[int, typer.Option(help="How many people compare each image.")] = 3,
    consensus: Annotated[str, typer.Option(help="all or majority.")] = "all",
    writers: Annotated[int, typer.Option(help="Captions per image.")] = 4,
    revise: Annotated[str, typer.Option(help="always, or once agreed (cheaper).")] = "always",
    second_look: Annotated[
        bool,
        typer.Option("--second-look", help="A revision counts once another person accepts it."),
    ] = False,
    protocol: Annotated[
        str, typer.Option(help="checked, or paper: without checks that the paper does not name.")
    ] = "checked",
    near: Annotated[
        int | None,
        typer.Option(help="Bits of 256 in which duplicates differ; -1: off.", show_default="6"),
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(help="Gold questions: a table of image, right, wrong.")
    ] = None,
    gold_rate: Annotated[
        float | None, typer.Option(help="Share of gold questions.", show_default="0.1")
    ] = None,
    quick_seconds: Annotated[
        float | None, typer.Option(help="Sooner answers are careless.", show_default="2")
    ] = None,
    lease_minutes: Annotated[float, typer.Option(help="How long a task is held.")] = 15.0,
    pay_per_hour: Annotated[
        float | None, typer.Option(help="USD; told to people and reported only if given.")
    ] = None,
    name: Annotated[str, typer.Option(help="The campaign's name.")] = "mceval",
    instructions: Annotated[
        Path | None, typer.Option(help="A text that people read before they begin.")
    ] = None,
) -> None:
    """Begin a campaign: images are hashed; duplicates and broken ones are left out."""
    require("sqlalchemy", "mceval")
    from mceval.checks import Checks
    from mceval.intake import begin_campaign, list_images
    from mceval.rules import Rules

    usual = lookup(PROTOCOLS, protocol, "protocol")
    if gold is not None and gold_rate is None and not usual.gold_rate:
        raise InputError(f"--protocol {protocol} has no gold questions; give --gold-rate as well")
    rules = Rules(
        seed, people, consensus, writers, revise, skips=usual.skips, second_look=second_look,
        near=usual.near if near is None else near,
    )  # fmt: skip
    checks = Checks(
        gold_rate=usual.gold_rate if gold_rate is None else gold_rate,
        quick_seconds=usual.quick_seconds if quick_seconds is None else quick_seconds,
    )
    sources = [read_domain(text, per_domain) for text in domain]
    total = sum(len(list_images(source)) for source in sources)  # mistakes show before the database
    words = _text(instructions) if instructions else ""
    now = time.time()
    with begin_campaign(
        database, rules, name=name, checks=checks, lease_seconds=lease_minutes * 60,
        pay_per_hour=pay_per_hour or 0.0, instructions=words, now=now,
    ) as db:  # fmt: skip
        _fill(db, sources, total, gold, now)


def _fill(
    db: Database, sources: Sequence[DomainSource], total: int, gold: Path | None, now: float
) -> None:
    """Add a new campaign's images and gold questions, and say what it has and lacks."""
    from mceval.intake import add_images
    from mceval.stalls import find_doubts

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
            stderr.print(
                f"{source.name}: {cells[0]} images for a quota of {source.quota}",
                style="yellow", markup=False,
            )  # fmt: skip
    with db.read() as session:
        doubts = find_doubts(session)
    stdout.print(table)
    for doubt in doubts:
        stderr.print(f"{doubt.what}; {doubt.cure}", style="yellow", markup=False, soft_wrap=True)


def add_gold_questions(db: Database, table: Path, now: float) -> None:
    """Add gold questions and say how many, and what an organiser should know of them."""
    from mceval.intake import add_gold

    added = add_gold(db, table, now)
    echo(f"{added.questions} gold questions")
    for warning in added.warnings():
        stderr.print(warning, style="yellow", markup=False, soft_wrap=True)


def read_domain(text: str, quota: int) -> DomainSource:
    """Return the domain of an option NAME=FOLDER, NAME=LIST or NAME:COUNT=...."""
    from mceval.intake import DomainSource

    name, equals, path = text.partition("=")
    if not equals or not path:
        raise InputError(f"--domain {text!r} must be NAME=FOLDER or NAME=LIST")
    name, colon, count = name.partition(":")
    if colon:
        if not count.isdigit():
            raise InputError(f"--domain {text!r}: {count!r} is not a number of images")
        quota = int(count)
    return DomainSource(name, Path(path), quota)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def candidates(
    database: DatabaseArgument,
    writer: Annotated[str, typer.Option(help="Who wrote the captions; people are not told.")],
    file: Annotated[Path | None, typer.Option(help="A table of image and caption.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead: a model that writes them, openai:NAME or endpoint:NAME."),
    ] = None,
    model_option: ModelOption = None,
    base_url: BaseUrl = None,
    prompt: Annotated[str | None, typer.Option(help="What the model is told.")] = None,
    spare: Annotated[
        float, typer.Option(help="Images beyond the quota to caption, as a share of it.")
    ] = 0.5,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --file: new captions where nobody saw the old.")
    ] = False,
) -> None:
    """Add a writer's captions, from a file or from a model; run again, it continues."""
    options = model_options(model_option, base_url=base_url)
    if (file is None) == (model is None):
        raise InputError("give either --file or --model")
    if replace and file is None:
        raise InputError("--replace goes with --file")
    if model is None and options:
        raise InputError(f"{next(iter(options))} is an option of a model; give --model as well")
    with open_campaign(database) as db:
        from mceval.candidates import (
            PROMPT,
            add_captions,
            open_caption_writer,
            write_captions,
        )

        if file is not None:
            added = add_captions(db, writer, file, time.time(), replace=replace)
        else:
            chat = open_caption_writer(model or "", options)
            with progress() as bar:
                task = bar.add_task("", total=None)
                added = write_captions(
                    db, writer, chat, now=time.time, spare=spare, prompt=prompt or PROMPT,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )  # fmt: skip
    known = f", {added.known} known" if added.known else ""
    unknown = f", {added.unknown} of images not in the campaign" if added.unknown else ""
    replaced = f", {added.replaced} replaced" if added.replaced else ""
    echo(f"{added.new} captions of {writer}{replaced}{known}{unknown}")
    if added.equal:
        stderr.print(
            f"{len(added.equal)} captions are another writer's as well, e.g. of {added.equal[0]}; "
            "equal captions are not compared with each other or with the reference",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip
    if added.too_few:
        stderr.print(
            f"{added.too_few} images are discarded: fewer than three of their captions differ",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip
    if added.seen:
        stderr.print(
            f"{added.seen} captions differ and stay: people have been shown these images",
            style="yellow", markup=False,
        )  # fmt: skip
    failed = dict(added.failed or {})
    for source, why in list(failed.items())[:5]:
        stderr.print(f"failed: {source}: {why}", style="red", markup=False, soft_wrap=True)
    if failed:
        stderr.print(f"{len(failed)} images failed; the same command tries again", markup=False)
        raise typer.Exit(1)
