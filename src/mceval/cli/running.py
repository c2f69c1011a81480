"""Verbs while people work: people, images, tasks of a crowd platform, and how far it is."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from discode.cli.output import echo, stderr, stdout
from discode.errors import InputError
from discode.files import csv_cell, replacing
from mceval.cli.common import (
    DatabaseArgument,
    interval_cell,
    make_table,
    number_cell,
    open_campaign,
    read_public_url,
)
from mceval.cli.preparing import add_gold_questions, read_domain

if TYPE_CHECKING:
    from mceval.database import Database
    from mceval.people import Invitation


def people(
    database: DatabaseArgument,
    role: Annotated[
        str | None, typer.Option(help="Invite: reviser, comparer, both, study or admin.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Somebody's name; repeat.")
    ] = None,
    count: Annotated[int, typer.Option(help="Invite this many, by number instead of name.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tokens here (CSV).")
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="The invitation can be used this long; default: always.")
    ] = None,
    reissue: Annotated[
        int | None, typer.Option(help="A new invitation for this person; the old one ends.")
    ] = None,
    careless: Annotated[
        int | None, typer.Option(help="Return this person's work to the queue.")
    ] = None,
    reinstate: Annotated[int | None, typer.Option(help="Let this person work again.")] = None,
    revoke: Annotated[
        int | None, typer.Option(help="End this person's part, or an admin's, at once.")
    ] = None,
    erase: Annotated[
        int | None,
        typer.Option(help="Withdraw this person's answers; erase their name and words for good."),
    ] = None,
    reason: Annotated[str, typer.Option(help="For --careless and --revoke.")] = "by an organiser",
    public_url: Annotated[
        str | None, typer.Option(help="The address that people use: links are written as well.")
    ] = None,
) -> None:
    """Invite people, or list them; a token is shown once and cannot be recovered."""
    where = read_public_url(public_url).origin if public_url is not None else None
    if count < 0:
        raise InputError(f"--count {count} is not allowed; give 1 or more")
    with open_campaign(database) as db:
        from mceval import people as members
        from mceval.database import settings_of
        from mceval.report import person_rows

        now = time.time()
        if careless is not None:
            voided = members.mark_careless(db, careless, reason, now)
            echo(f"{voided} answers of person {careless} are returned to the queue")
            return
        if reinstate is not None:
            members.reinstate(db, reinstate, now)
            echo(f"person {reinstate} may work again")
            return
        if revoke is not None:
            members.revoke(db, revoke, reason, now)
            echo(f"person {revoke} is out: their link and browsers no longer work")
            return
        if erase is not None:
            withdrawn = members.erase(db, erase, now)
            echo(
                f"{withdrawn} answers of person {erase} are withdrawn and asked for again; name "
                "and texts are erased, but not in backups and exported datasets"
            )
            return
        if reissue is not None:
            _hand_out([members.reissue(db, reissue, now, days=days)], output, where)
            return
        if role is not None:
            with db.read() as session:
                names = [*(name or []), *members.numbered_names(session, role, count)]
                members.check_new_names(session, names)
            if not names:
                raise InputError("give --name (once or more) or --count")
            _hand_out(members.invite(db, names, role, now, days=days), output, where)
            return
        if name or count:
            raise InputError("give --role as well: reviser, comparer, both, study or admin")
        with db.read() as session:
            rows = person_rows(session)
            paid = settings_of(session).pay_per_hour > 0
    # What nobody has is not shown: the table fits a terminal of 80 columns.
    some = {
        "void": any(row.void for row in rows), "pay": paid, "gold": any(row.gold for row in rows),
        "quick": any(row.quick for row in rows),
    }  # fmt: skip
    shown = [name for name in ("person", "name", "role", "state", "answers", "void", "hours", "pay",
                               "s", "gold", "quick", "agreed") if some.get(name, True)]  # fmt: skip
    table = make_table(*shown, left=4)
    for row in rows:
        cells = {
            "person": str(row.id), "name": escape(row.name), "role": row.role, "state": row.state,
            "answers": str(row.answers), "void": str(row.void), "hours": f"{row.hours:.2f}",
            "pay": f"{row.pay:.2f}", "s": number_cell(row.median_seconds, 1),
            "gold": f"{row.right}/{row.gold}", "quick": str(row.quick),
            "agreed": f"{row.agreed}/{row.shared}",
        }  # fmt: skip
        table.add_row(*(cells[name] for name in shown))
    stdout.print(table)


def _hand_out(invitations: Sequence[Invitation], output: Path | None, where: str | None) -> None:
    """Print invitations, or write them to a table; with an address, a link for each."""
    links = [[f"{where}/join/{one.token}"] if where else [] for one in invitations]
    if output is None:
        for one, link in zip(invitations, links, strict=True):
            echo("\t".join([str(one.person), one.name, one.role, one.token, *link]))
        return
    with replacing(output) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "name", "role", "token", *(["link"] if where else [])])
        writer.writerows(
            [one.person, csv_cell(one.name), one.role, one.token, *link]
            for one, link in zip(invitations, links, strict=True)
        )
    output.chmod(0o600)
    echo(f"{len(invitations)} tokens in {output}")


def tasks(
    database: DatabaseArgument,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    image_url: Annotated[
        str, typer.Option(help="Where you host the images: https://.../{digest}{suffix}")
    ],
    form: Annotated[str, typer.Option(help="mturk or csv.")] = "mturk",
    gold: Annotated[
        bool, typer.Option("--gold/--no-gold", help="With the gold questions among them.")
    ] = True,
    study: Annotated[
        bool, typer.Option("--study", help="The user study's tasks instead of the campaign's.")
    ] = False,
    copy_images: Annotated[
        Path | None,
        typer.Option(help="Write the images to host here: one frame, without metadata."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Where the images are now, if they were moved.")
    ] = None,
) -> None:
    """Write what is open as tasks for a crowd platform."""
    with open_campaign(database) as db:
        from mceval.crowd import crowd_tasks, write_tasks
        from mceval.database import settings_of
        from mceval.people import keep_guide
        from mceval.states import log_exported

        with db.read() as session:
            found = crowd_tasks(
                session, image_url, gold=gold, study=study, copies=copy_images, images=images
            )
            settings = settings_of(session)
        write_tasks(
            found, folder, form, settings.instructions, settings.pay_per_hour,
            skips=settings.rules.skips > 0,
        )  # fmt: skip
        now = time.time()
        db.run(lambda session: keep_guide(session, now))
        if not study:
            db.run(lambda session: log_exported(session, now))
    wanted = sum(task.assignments for task in found)
    echo(f"{len(found)} tasks for {wanted} answers in {folder}")


def import_answers(
    database: DatabaseArgument,
    results: Annotated[Path, typer.Argument(help="The platform's results (CSV, JSON).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Decisions; default: RESULTS.decided.csv")
    ] = None,
) -> None:
    """Read a crowd platform's results; every assignment gets a decision and a reason."""
    output = output or results.with_name(f"{results.stem}.decided.csv")
    if output.resolve() == results.resolve():
        raise InputError(f"--output {output} is also read from; give another file")
    with open_campaign(database) as db:
        from mceval import crowd_import

        decisions = crowd_import.import_results(db, results, time.time())
    crowd_import.write_decisions(decisions, results, output)
    rejected = sum(one.decision == "reject" for one in decisions)
    used = sum(one.used for one in decisions)
    echo(
        f"{len(decisions)} results: {used} used, {len(decisions) - rejected} to approve, "
        f"{rejected} to reject; see {output}"
    )


def images(
    database: DatabaseArgument,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Add images of a folder or a list; NAME:COUNT=... sets the quota.",
        ),
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(help="Add gold questions: a table of image, right, wrong.")
    ] = None,
    take_down: Annotated[int | None, typer.Option(help="Discard this image for good.")] = None,
    restore: Annotated[
        int | None, typer.Option(help="Bring back this image: its flags no longer count.")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="For --take-down and --restore.")
    ] = "an organiser looked at it",
) -> None:
    """List flagged and discarded images; add images or gold; take one down or bring one back."""
    with open_campaign(database) as db:
        from mceval import organising
        from mceval.report import flag_rows, pass_warnings

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
    table = make_table("image", "domain", "source", "why it is discarded, or flagged", left=4)
    for number, row in shown.items():
        table.add_row(str(number), *map(escape, row))
    for flag in flags:
        if flag.image not in shown:
            by = f"flag of {flag.name}: {flag.reason}"
            why = f"{by} ({flag.set_aside})" if flag.set_aside else by
            table.add_row(str(flag.image), *map(escape, (flag.domain, flag.source, why)))
    stdout.print(table)
    for warning in warnings:
        stderr.print(str(warning), style="yellow", markup=False)


def _add_images(db: Database, domains: Sequence[str], now: float) -> None:
    from sqlalchemy import select

    from mceval.intake import add_images
    from mceval.report import domain_rows, quota_notes
    from mceval.tables import Domain

    with db.read() as session:
        rows = session.execute(select(Domain.name, Domain.quota)).all()
    quotas = {row[0]: row[1] for row in rows}
    sources = []
    for text in domains:
        name = text.partition("=")[0]
        if name not in quotas and ":" not in name:
            raise InputError(
                f"--domain {text!r}: the campaign has {', '.join(quotas)}; "
                "for a new domain, say how many images it should have: NAME:COUNT=FOLDER"
            )
        sources.append(read_domain(text, quotas.get(name, 1)))
    for name, counts in add_images(db, sources, now=now).items():
        left_out = counts.get("duplicate", 0) + counts.get("unreadable", 0)
        echo(f"{name}: {counts.get('pool', 0)} new images, {left_out} left out")
    with db.read() as session:
        after = [row for row in domain_rows(session) if row.done > row.quota]
    for note in quota_notes(after):
        stderr.print(note, style="yellow", markup=False, soft_wrap=True)
    echo("next: their captions, with discode mceval candidates")


def status(database: DatabaseArgument) -> None:
    """Show how far each domain is, how people agree, and what stands still."""
    with open_campaign(database) as db:
        from mceval.database import settings_of
        from mceval.report import (
            domain_rows,
            pass_warnings,
            person_rows,
            second_looks,
            side_rows,
        )
        from mceval.stalls import find_doubts, find_stalls

        with db.read() as session:
            domains, members, doubts = (
                domain_rows(session), person_rows(session), find_doubts(session)
            )  # fmt: skip
            stalls, warnings = find_stalls(session, time.time()), pass_warnings(session)
            sides = side_rows(session)[-1]
            settings, looks = settings_of(session), second_looks(session)
    table = make_table("domain", "done", "wanted", "active", "pool", "discarded", "left\nout",
                       "no consensus", "κ", "α")  # fmt: skip
    for row in domains:
        left_out = row.states.get("duplicate", 0) + row.states.get("unreadable", 0)
        counts = [row.states.get(state, 0) for state in ("active", "pool", "discarded")]
        table.add_row(
            escape(row.name), str(row.done), str(row.quota), *map(str, counts), str(left_out),
            interval_cell(row.no_consensus), number_cell(row.kappa, 3), number_cell(row.alpha, 3),
        )  # fmt: skip
    stdout.print(table)
    answers = sum(row.answers for row in members)
    worked = sum(row.answers > 0 for row in members)
    hours = sum(row.hours for row in members)
    pay = f", pay {sum(row.pay for row in members):.2f}" if settings.pay_per_hour else ""
    count = Counter(row.state for row in members)
    echo(
        f"{answers} answers by {worked} of {len(members)} people in {hours:.1f} h{pay}; "
        f"{count['careless']} careless, {count['left']} left, "
        f"{sum(row.void for row in members)} answers void"
    )
    if sides.compared:
        echo(f"left caption chosen: {interval_cell(sides.left)} of {sides.compared}")
    if settings.rules.second_look:
        echo(
            f"revisions: {looks.accepted} accepted, {looks.rejected} rejected, {looks.waiting} "
            "wait for a second look"
        )
    for warning in warnings:
        echo(f"warning: {warning}")
    for doubt in doubts:
        echo(f"warning: {doubt.what}\n  cure: {doubt.cure}")
    for stall in stalls:
        echo(f"stalled: {stall.what}\n  cure: {stall.cure}")
