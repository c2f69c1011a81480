"""Verbs while people work: images, tasks of a crowd platform, and how far it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from typer import Argument, Option

from discode._cli import flags
from discode._cli.output import echo, note, output_file, stdout
from discode.errors import InputError
from mceval._cli.common import (
    DatabaseArgument,
    DomainsIfAny,
    Gold,
    Reason,
    interval_cell,
    make_table,
    number_cell,
    open_campaign,
)
from mceval._cli.preparing import add_gold_questions, read_domain

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from mceval.database import Database


def tasks(
    database: DatabaseArgument,
    folder: Annotated[Path, Argument(help="A new folder.")],
    image_url: Annotated[
        str, Option(help="Where you host the images: https://.../{digest}{suffix}")
    ],
    form: Annotated[str, Option(metavar="NAME", help="mturk or csv.")] = "mturk",
    no_gold: Annotated[bool, Option("--no-gold", help="Leave out the gold questions.")] = False,
    study: Annotated[
        bool, Option("--study", help="Tasks of the user study instead of the campaign.")
    ] = False,
    copy_images: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Folder for images to host: one frame, no metadata."),
    ] = None,
    images: flags.Images = None,
) -> None:
    """Write the open tasks for a crowd platform."""
    with open_campaign(database) as db:
        from mceval._crowd import crowd_tasks, log_exported, write_tasks
        from mceval.database import settings_of

        with db.read() as session:
            written = crowd_tasks(
                session, image_url, gold=not no_gold, study=study, copies=copy_images, images=images
            )
            settings = settings_of(session)
        write_tasks(
            written, folder, form, settings.instructions, settings.pay_per_hour,
            skips=settings.rules.skips > 0,
        )  # fmt: skip
        log_exported(db, time.time(), study=study)
    wanted = sum(task.assignments for task in written)
    echo(f"{len(written)} tasks for {wanted} answers in {folder}")


def import_answers(
    database: DatabaseArgument,
    results: Annotated[Path, Argument(help="The platform's results, a table.")],
    typed: Annotated[
        str | None,
        flags.output_option(help="File or folder for the decisions; default: RESULTS.decided.csv."),
    ] = None,
) -> None:
    """Read the results of a crowd platform; decide on every assignment, with a reason."""
    name = f"{results.stem}.decided.csv"
    output = output_file(typed or str(results.with_name(name)), name)
    if output.resolve() == results.resolve():
        raise InputError(f"--output {output} is also read from; give another file")
    with open_campaign(database) as db:
        from mceval import _crowd_import as crowd_import

        decisions = crowd_import.import_results(db, results, time.time())
    crowd_import.write_decisions(decisions, results, output)
    rejected = sum(row.decision == "reject" for row in decisions)
    used = sum(row.used for row in decisions)
    echo(
        f"{len(decisions)} results: {used} used, {len(decisions) - rejected} to approve, "
        f"{rejected} to reject; see {output}"
    )


def images(
    database: DatabaseArgument,
    domain: DomainsIfAny = None,
    gold: Gold = None,
    take_down: Annotated[
        int | None, Option(metavar="ID", help="Discard this image for good.")
    ] = None,
    restore: Annotated[
        int | None, Option(metavar="ID", help="Restore this image and ignore its flags.")
    ] = None,
    reason: Reason = "an organiser looked at it",
) -> None:
    """List flagged and discarded images; add images or gold; take down or restore one."""
    with open_campaign(database) as db:
        from mceval import _organising as organising
        from mceval._report import flag_rows, pass_warnings

        now = time.time()
        if take_down is not None:
            organising.take_down(db, take_down, reason, now)
            echo(f"image {take_down} is taken down")
        if restore is not None:
            organising.restore(db, restore, reason, now)
            echo(f"image {restore} is restored")
        if domain:
            _add_images(db, domain, now)
        if gold is not None:
            add_gold_questions(db, gold, now)
        if take_down is not None or restore is not None or domain or gold is not None:
            return
        with db.read() as session:
            flags, warnings = flag_rows(session), pass_warnings(session)
            discarded = organising.discarded_images(session)
    shown = {image.id: (image.domain, image.source, image.reason) for image in discarded}
    table = make_table("image", "domain", "source", "why it is discarded or flagged", left=4)
    for number, row in shown.items():
        table.add_row(str(number), *map(escape, row))
    for flag in flags:
        if flag.image not in shown:
            by = f"flag of {flag.name}: {flag.reason}"
            why = f"{by} ({flag.set_aside})" if flag.set_aside else by
            table.add_row(str(flag.image), *map(escape, (flag.domain, flag.source, why)))
    stdout.print(table)
    for warning in warnings:
        note(f"{warning.name} (person {warning.person}) {warning.words}", "yellow")


def _add_images(db: Database, domains: Sequence[str], now: float) -> None:
    from sqlalchemy import select

    from mceval._intake import add_images
    from mceval._report import domain_rows, quota_notes
    from mceval._tables import Domain

    with db.read() as session:
        quotas = dict(session.execute(select(Domain.name, Domain.quota)).all())
    sources = []
    for text in domains:
        name = text.partition("=")[0]
        if name not in quotas and ":" not in name:
            raise InputError(
                f"--domain {text!r}: the campaign has {', '.join(quotas)}; for a new domain, give "
                "its number of images: NAME:COUNT=FOLDER"
            )
        sources.append(read_domain(text, quotas.get(name, 1)))
    for name, counts in add_images(db, sources, now=now).items():
        left_out = counts.get("duplicate", 0) + counts.get("unreadable", 0)
        echo(f"{name}: {counts.get('pool', 0)} new images, {left_out} left out")
    with db.read() as session:
        after = [row for row in domain_rows(session) if row.done > row.quota]
    for words in quota_notes(after):
        note(words, "yellow")
    echo("next: their captions, with discode mceval candidates")


def status(database: DatabaseArgument) -> None:
    """Show the progress of each domain, the agreement of people, and stalled work."""
    with open_campaign(database) as db:
        from mceval._report import domain_rows, pass_warnings
        from mceval._stalls import find_doubts, find_stalls

        with db.read() as session:
            domains, counts = domain_rows(session), list(_counts(session))
            warnings, doubts = pass_warnings(session), find_doubts(session)
            stalls = find_stalls(session, time.time())
    table = make_table("domain", "done", "wanted", "active", "pool", "discarded", "left\nout",
                       "no consensus", "κ", "α")  # fmt: skip
    for row in domains:
        left_out = row.states["duplicate"] + row.states["unreadable"]
        states = [row.states[state] for state in ("active", "pool", "discarded")]
        table.add_row(
            escape(row.name), str(row.done), str(row.quota), *map(str, states), str(left_out),
            interval_cell(row.no_consensus), number_cell(row.kappa, 3), number_cell(row.alpha, 3),
        )  # fmt: skip
    stdout.print(table)
    for line in counts:
        echo(line)
    for warning in warnings:
        echo(f"warning: {warning.name} (person {warning.person}) {warning.words}")
    for word, rows in (("warning", doubts), ("stalled", stalls)):
        for doubt in rows:
            echo(f"{word}: {doubt.what}\n  cure: {doubt.cure}")


def _counts(session: Session) -> Iterator[str]:
    """Yield how much people have done, which sides they chose, and what became of revisions."""
    from mceval._report import person_rows, second_looks, side_rows
    from mceval.database import settings_of

    members, settings = person_rows(session), settings_of(session)
    pay = f", pay {sum(row.pay for row in members):.2f}" if settings.pay_per_hour else ""
    count = Counter(row.state for row in members)
    yield (
        f"{sum(row.answers for row in members)} answers by "
        f"{sum(row.answers > 0 for row in members)} of {len(members)} people in "
        f"{sum(row.hours for row in members):.1f} h{pay}; {count['careless']} careless, "
        f"{count['left']} left, {sum(row.void for row in members)} answers void"
    )
    sides = side_rows(session)[-1]
    if sides.compared:
        yield f"left caption chosen: {interval_cell(sides.left)} of {sides.compared}"
    if settings.rules.second_look:
        looks = second_looks(session)
        yield (
            f"revisions: {looks.accepted} accepted, {looks.rejected} rejected, {looks.waiting} "
            "wait for a second look"
        )
