"""Verbs while people work: invite them, exchange tasks with a crowd platform, see how far it is."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from discode.cli.output import stdout
from discode.errors import InputError
from discode.files import replacing
from discode.mceval.cli.common import (
    DatabaseArgument,
    interval_cell,
    make_table,
    number_cell,
    open_campaign,
)

if TYPE_CHECKING:
    from discode.mceval.people import Invitation


def people(
    database: DatabaseArgument,
    role: Annotated[
        str | None, typer.Option(help="Invite: reviser, comparer, both, study or admin.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="Somebody's name; repeat.")] = None,
    count: Annotated[int, typer.Option(help="Invite this many, by number instead of name.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tokens here (CSV).")
    ] = None,
    careless: Annotated[
        int | None, typer.Option(help="Return this person's work to the queue.")
    ] = None,
    reinstate: Annotated[int | None, typer.Option(help="Let this person work again.")] = None,
    reason: Annotated[str, typer.Option(help="For --careless.")] = "by an organiser",
) -> None:
    """Invite people, or list them; a token is shown once and cannot be recovered."""
    with open_campaign(database) as db:
        from discode.mceval import people as members
        from discode.mceval.report import person_rows

        if careless is not None:
            voided = members.mark_careless(db, careless, reason, time.time())
            typer.echo(f"{voided} answers of person {careless} are returned to the queue")
            return
        if reinstate is not None:
            members.reinstate(db, reinstate, time.time())
            typer.echo(f"person {reinstate} may work again")
            return
        if role is not None:
            names = [*(name or []), *(f"{role} {i + 1}" for i in range(count))]
            if not names:
                raise InputError("give --name (once or more) or --count")
            _hand_out(members.invite(db, names, role, time.time()), output)
            return
        if name or count:
            raise InputError("give --role as well: reviser, comparer, both, study or admin")
        with db.read() as session:
            rows = person_rows(session)
    table = make_table("person", "name", "role", "state", "answers", "void", "hours", "pay", "s",
                       "gold", "quick", "agreed")  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.id), escape(row.name), row.role, row.state, str(row.answers), str(row.void),
            f"{row.hours:.2f}", f"{row.pay:.2f}", number_cell(row.median_seconds, 1),
            f"{row.right}/{row.gold}", str(row.quick), f"{row.agreed}/{row.shared}",
        )  # fmt: skip
    stdout.print(table)


def _hand_out(invitations: Sequence[Invitation], output: Path | None) -> None:
    if output is None:
        for one in invitations:
            typer.echo(f"{one.person}\t{one.name}\t{one.role}\t{one.token}")
        return
    with replacing(output) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "name", "role", "token"])
        writer.writerows([one.person, one.name, one.role, one.token] for one in invitations)
    output.chmod(0o600)
    typer.echo(f"{len(invitations)} tokens in {output}")


def tasks(
    database: DatabaseArgument,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    image_url: Annotated[
        str, typer.Option(help="Where you host the images: https://.../{digest}{suffix}")
    ],
    form: Annotated[str, typer.Option(help="mturk or csv.")] = "mturk",
    gold: Annotated[int, typer.Option(help="People per gold question; 0: none.")] = 9,
    study: Annotated[
        bool, typer.Option("--study", help="The user study's tasks instead of the campaign's.")
    ] = False,
) -> None:
    """Write what is open as tasks for a crowd platform."""
    with open_campaign(database) as db:
        from discode.mceval.crowd import crowd_tasks, write_tasks
        from discode.mceval.database import settings_of

        with db.read() as session:
            found = crowd_tasks(session, image_url, gold_assignments=gold, study=study)
            settings = settings_of(session)
    write_tasks(found, folder, form, settings)
    wanted = sum(task.assignments for task in found)
    typer.echo(f"{len(found)} tasks for {wanted} answers in {folder}")


def import_answers(
    database: DatabaseArgument,
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
        from discode.mceval import crowd_import

        decisions = crowd_import.import_results(db, results, time.time())
    crowd_import.write_decisions(decisions, results, output)
    rejected = sum(one.decision == "reject" for one in decisions)
    used = sum(one.used for one in decisions)
    typer.echo(
        f"{len(decisions)} results: {used} used, {len(decisions) - rejected} to approve, "
        f"{rejected} to reject; see {output}"
    )


def status(database: DatabaseArgument) -> None:
    """Show how far each domain is, how people agree, and what it has cost."""
    with open_campaign(database) as db:
        from discode.mceval.report import domain_rows, person_rows

        with db.read() as session:
            domains, members = domain_rows(session), person_rows(session)
    table = make_table("domain", "done", "wanted", "active", "pool", "discarded", "left out",
                       "no consensus", "κ", "α")  # fmt: skip
    for row in domains:
        left_out = row.states.get("duplicate", 0) + row.states.get("unreadable", 0)
        counts = [row.states.get(state, 0) for state in ("active", "pool", "discarded")]
        table.add_row(
            escape(row.name), str(row.done), str(row.quota), *map(str, counts), str(left_out),
            interval_cell(row.discard), number_cell(row.kappa, 3), number_cell(row.alpha, 3),
        )  # fmt: skip
    stdout.print(table)
    answers = sum(row.answers for row in members)
    worked = sum(row.answers > 0 for row in members)
    hours, pay = sum(row.hours for row in members), sum(row.pay for row in members)
    careless = sum(row.state == "careless" for row in members)
    typer.echo(
        f"{answers} answers by {worked} of {len(members)} people in {hours:.1f} h, pay {pay:.2f}; "
        f"{careless} careless, {sum(row.void for row in members)} answers void"
    )
