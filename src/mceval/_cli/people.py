"""discode mceval people: invite, list and manage the people of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from discode._cli import flags
from discode._cli.output import echo, output_file, stdout
from discode._files import csv_cell, write_csv
from discode.errors import InputError, count_of
from mceval._cli.common import (
    DatabaseArgument,
    PublicUrl,
    Reason,
    make_table,
    number_cell,
    open_campaign,
    read_public_url,
)

if TYPE_CHECKING:
    from mceval._tables import Person
    from mceval.database import Database
    from mceval.people import Invitation

app = typer.Typer(
    help="Invite, list and manage the people of a campaign.",
    no_args_is_help=True,
    add_completion=False,
)
Who = Annotated[str, Argument(metavar="PERSON", help="Name or number, as in `people list`.")]
Output = Annotated[
    str | None,
    flags.output_option(help="CSV file, or a folder for tokens.csv; default: print the tokens."),
]
Days = Annotated[float | None, Option(help="Days until the invitation expires; default: never.")]


@app.command()
def invite(
    database: DatabaseArgument,
    role: Annotated[str, Option(help="comparer, reviser, both, study or admin.")],
    names: Annotated[
        list[str] | None, Argument(metavar="NAME", help="Names of people.", show_default=False)
    ] = None,
    count: Annotated[int, Option(help="Invite this many more people without a name.")] = 0,
    output: Output = None,
    days: Days = None,
    public_url: PublicUrl = None,
) -> None:
    """Invite people; a token is shown once and cannot be recovered."""

    def make(db: Database) -> list[Invitation]:
        from mceval import people

        with db.read() as session:
            wanted = people.new_names(session, names or [], count)
        return people.invite(db, wanted, role, time.time(), days=days)

    _hand_out(database, make, output, public_url)


@app.command()
def reissue(
    database: DatabaseArgument,
    person: Who,
    output: Output = None,
    days: Days = None,
    public_url: PublicUrl = None,
) -> None:
    """Replace a person's invitation; the old link and their browsers stop working."""

    def make(db: Database) -> list[Invitation]:
        from mceval import people

        return [people.reissue(db, people.find_person(db, person).id, time.time(), days=days)]

    _hand_out(database, make, output, public_url)


@app.command()
def revoke(database: DatabaseArgument, person: Who, reason: Reason = "by an organiser") -> None:
    """End a person's part at once; their answers still count."""
    row, _ = _act("revoke", database, person, reason)
    echo(f"{row.name} is out: their link and browsers no longer work")


@app.command("mark-careless")
def mark_careless(
    database: DatabaseArgument, person: Who, reason: Reason = "by an organiser"
) -> None:
    """End a person's part and requeue their tasks; their answers are void."""
    row, voided = _act("mark_careless", database, person, reason)
    echo(f"{voided} answers of {row.name} are returned to the queue")


@app.command()
def reinstate(database: DatabaseArgument, person: Who) -> None:
    """Let a person work again; only their new answers are judged."""
    row, _ = _act("reinstate", database, person)
    echo(f"{row.name} may work again")


@app.command()
def erase(database: DatabaseArgument, person: Who) -> None:
    """Withdraw a person's answers and erase their name and texts."""
    row, withdrawn = _act("erase", database, person)
    echo(f"{withdrawn} answers of person {row.id} are withdrawn and asked for again; name and "
         "texts are erased, but not in backups and exported datasets")  # fmt: skip


@app.command("list")
def list_people(database: DatabaseArgument) -> None:
    """List everyone with their work and how often they are with the majority."""
    with open_campaign(database) as db:
        from mceval._report import person_rows
        from mceval.database import settings_of

        with db.read() as session:
            rows = person_rows(session)
            paid = settings_of(session).pay_per_hour > 0
    cells = [
        {
            "person": str(row.id), "name": escape(row.name), "role": row.role, "state": row.state,
            "answers": str(row.answers), "void": str(row.void), "hours": f"{row.hours:.2f}",
            "pay": f"{row.pay:.2f}", "s": number_cell(row.median_seconds, 1),
            "gold": f"{row.right}/{row.gold}", "quick": str(row.quick),
            "agreed": f"{row.with_majority}/{row.decided}",
        }
        for row in rows
    ]  # fmt: skip
    # What nobody has is not shown: the table fits a terminal of 80 columns.
    empty = {name for name in ("void", "gold", "quick") if not any(getattr(r, name) for r in rows)}
    columns = ("person", "name", "role", "state", "answers", "void", "hours", "pay", "s", "gold",
               "quick", "agreed")  # fmt: skip
    shown = [name for name in columns if name not in empty and (paid or name != "pay")]
    table = make_table(*shown, left=4)
    for row in cells:
        table.add_row(*(row[name] for name in shown))
    stdout.print(table)


def _act(name: str, database: str, who: str, *reason: str) -> tuple[Person, Any]:
    """Find a person and call a function of :mod:`mceval.people` for them."""
    with open_campaign(database) as db:
        from mceval import people

        row = people.find_person(db, who)
        return row, getattr(people, name)(db, row.id, *reason, time.time())


def _hand_out(
    database: str,
    make: Callable[[Database], list[Invitation]],
    typed: str | None,
    public_url: str | None,
) -> None:
    """Make invitations and print them, or write them to a table; with an address, with links."""
    where = read_public_url(public_url) if public_url is not None else None
    # Checked before anyone is invited whose token would be lost.
    output = None if typed is None else output_file(typed, "tokens.csv")
    with open_campaign(database) as db:
        invitations = make(db)
    rows = [
        [str(row.person), csv_cell(row.name) if output else row.name, row.role, row.token,
         *([f"{where}/join/{row.token}"] if where else [])]
        for row in invitations
    ]  # fmt: skip
    if output is None:
        _print_rows(rows)
        return
    header = ["person", "name", "role", "token", *(["link"] if where else [])]
    try:
        write_csv(output, [header, *rows])
    except InputError:  # the disk is full: the tokens exist nowhere else
        _print_rows(rows)
        raise
    output.chmod(0o600)
    echo(f"{count_of(len(invitations), 'token')} in {output}")


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        echo("\t".join(row))
