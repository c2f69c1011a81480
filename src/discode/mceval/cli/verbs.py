"""discode mceval: build a benchmark of human preferences, from folders to a dataset."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from discode.cli.output import progress, stderr, stdout
from discode.errors import InputError, require
from discode.files import replacing
from discode.mceval.cli import annotate, campaign
from discode.mceval.cli.campaign import Db, interval, number, open_campaign, table_of

if TYPE_CHECKING:
    from discode.mceval.intake import Source
    from discode.mceval.people import Invitation

app = typer.Typer(help="Build a benchmark of human preferences.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Build a benchmark of human preferences."""


@app.command()
def init(
    database: Db,
    domain: Annotated[
        list[str],
        typer.Option(help="NAME=FOLDER, or NAME=LIST of images; NAME:COUNT=... for its own count."),
    ],
    per_domain: Annotated[int, typer.Option(help="How many images a domain shall have.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    people: Annotated[int, typer.Option(help="Who compare an image.")] = 3,
    consensus: Annotated[str, typer.Option(help="all or majority.")] = "all",
    writers: Annotated[int, typer.Option(help="Captions an image.")] = 4,
    revise: Annotated[str, typer.Option(help="always, or once agreed (cheaper).")] = "always",
    near: Annotated[int, typer.Option(help="Bits of 256 in which duplicates differ; -1: off.")] = 6,
    gold: Annotated[
        Path | None, typer.Option(help="Gold questions: a table of image, right, wrong.")
    ] = None,
    gold_rate: Annotated[float, typer.Option(help="Share of gold questions.")] = 0.1,
    quick_seconds: Annotated[float, typer.Option(help="Sooner is careless.")] = 2.0,
    lease_minutes: Annotated[float, typer.Option(help="How long a task is held.")] = 15.0,
    pay_per_hour: Annotated[float, typer.Option(help="For the reports.")] = 23.0,
    name: Annotated[str, typer.Option(help="The campaign's.")] = "mceval",
    instructions: Annotated[
        Path | None, typer.Option(help="A text that people read before they begin.")
    ] = None,
) -> None:
    """Begin a campaign: images are hashed; duplicates and broken ones are left out."""
    require("sqlalchemy", "mceval")
    from discode.mceval.checks import Checks
    from discode.mceval.database import Database
    from discode.mceval.intake import add_gold, files_of, take_in
    from discode.mceval.rules import Rules

    rules = Rules(seed, people, consensus, writers, revise)
    checks = Checks(gold_rate=gold_rate, quick_seconds=quick_seconds)
    sources = [_source(text, per_domain) for text in domain]
    total = sum(len(files_of(source)) for source in sources)  # mistakes show before the database
    words = _text(instructions) if instructions else ""
    new = "://" not in database and not Path(database).exists()
    now = time.time()
    with Database(database) as db:
        try:
            db.create(
                rules, name=name, checks=checks, lease_seconds=lease_minutes * 60,
                pay_per_hour=pay_per_hour, instructions=words, now=now,
            )  # fmt: skip
            with progress() as bar:
                task = bar.add_task("", total=total)
                counts = take_in(
                    db, sources, now=now, near=near,
                    tell=lambda done: bar.update(task, completed=done),
                )  # fmt: skip
            if gold is not None:
                typer.echo(f"{add_gold(db, gold, now)} gold questions")
        except BaseException:
            db.close()
            for end in ("", "-wal", "-shm") if new else ():
                Path(f"{database}{end}").unlink(missing_ok=True)  # a failed start leaves nothing
            raise
        table = table_of("domain", "wanted", "pool", "duplicates", "unreadable")
        for source in sources:
            found = counts[source.name]
            cells = [found.get(state, 0) for state in ("pool", "duplicate", "unreadable")]
            table.add_row(escape(source.name), str(source.quota), *map(str, cells))
            if cells[0] < source.quota:
                stderr.print(
                    f"{source.name}: {cells[0]} images for a quota of {source.quota}",
                    style="yellow", markup=False,
                )  # fmt: skip
    stdout.print(table)


def _source(text: str, quota: int) -> Source:
    from discode.mceval.intake import Source

    name, equals, path = text.partition("=")
    if not equals or not path:
        raise InputError(f"--domain {text!r} must be NAME=FOLDER or NAME=LIST")
    name, colon, count = name.partition(":")
    if colon:
        if not count.isdigit():
            raise InputError(f"--domain {text!r}: {count!r} is no number of images")
        quota = int(count)
    return Source(name, Path(path), quota)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


@app.command()
def candidates(
    database: Db,
    writer: Annotated[str, typer.Option(help="Who wrote the captions; people are not told.")],
    file: Annotated[Path | None, typer.Option(help="A table of image and caption.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Instead: a server that speaks OpenAI's, e.g. http://.../v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The server's model; default: WRITER.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What the model is told.")] = None,
    spare: Annotated[
        float, typer.Option(help="Images beyond the quota to caption, as a share of it.")
    ] = 0.5,
) -> None:
    """Add a writer's captions, from a file or from a model; run again, it goes on."""
    from discode.backends.served.client import ChatClient

    if (file is None) == (endpoint is None):
        raise InputError("give either --file or --endpoint")
    with open_campaign(database) as db:
        from discode.mceval import candidates as captions

        if file is not None:
            added = captions.add_file(db, writer, file, time.time())
        else:
            assert endpoint is not None
            chat = ChatClient(endpoint, model or writer)
            with progress() as bar:
                task = bar.add_task("", total=None)
                added = captions.ask(
                    db, writer, chat, now=time.time, spare=spare,
                    prompt=prompt or captions.PROMPT,
                    tell=lambda done, total: bar.update(task, completed=done, total=total),
                )  # fmt: skip
    known = f", {added.known} known" if added.known else ""
    unknown = f", {added.unknown} of images not in the campaign" if added.unknown else ""
    typer.echo(f"{added.new} captions of {writer}{known}{unknown}")
    failed = dict(added.failed or {})
    for source, why in list(failed.items())[:5]:
        stderr.print(f"failed: {source}: {why}", style="red", markup=False, soft_wrap=True)
    if failed:
        stderr.print(f"{len(failed)} images failed; the same command asks again", markup=False)
        raise typer.Exit(1)


@app.command()
def people(
    database: Db,
    role: Annotated[
        str | None, typer.Option(help="Invite: reviser, comparer, both, study or admin.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="Somebody's name; repeat.")] = None,
    count: Annotated[int, typer.Option(help="So many, by number instead of name.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tokens here (CSV).")
    ] = None,
    careless: Annotated[
        int | None, typer.Option(help="Put this person's work back in the queue.")
    ] = None,
    reinstate: Annotated[int | None, typer.Option(help="Let this person work again.")] = None,
    reason: Annotated[str, typer.Option(help="For --careless.")] = "by an organiser",
) -> None:
    """Invite people, or list them; a token is shown once and cannot be had again."""
    with open_campaign(database) as db:
        from discode.mceval import people as crew
        from discode.mceval.report import person_rows

        if careless is not None:
            voided = crew.mark_careless(db, careless, reason, time.time())
            typer.echo(f"{voided} answers of person {careless} are put back in the queue")
            return
        if reinstate is not None:
            crew.reinstate(db, reinstate, time.time())
            typer.echo(f"person {reinstate} may work again")
            return
        if role is not None:
            names = [*(name or []), *(f"{role} {i + 1}" for i in range(count))]
            if not names:
                raise InputError("give --name (once or more) or --count")
            _hand_out(crew.invite(db, names, role, time.time()), output)
            return
        if name or count:
            raise InputError("give --role as well: reviser, comparer, both, study or admin")
        with db.read() as session:
            rows = person_rows(session)
    table = table_of("person", "name", "role", "state", "answers", "void", "hours", "pay", "s",
                   "gold", "quick", "agreed")  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.id), escape(row.name), row.role, row.state, str(row.answers), str(row.void),
            f"{row.hours:.2f}", f"{row.pay:.2f}", number(row.median_seconds, 1),
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


@app.command()
def status(database: Db) -> None:
    """Say how far each domain is, how people agree, and what it has cost."""
    with open_campaign(database) as db:
        from discode.mceval.report import domain_rows, person_rows

        with db.read() as session:
            domains, crew = domain_rows(session), person_rows(session)
    table = table_of("domain", "done", "wanted", "active", "pool", "discarded", "left out",
                   "no consensus", "κ", "α")  # fmt: skip
    for row in domains:
        left_out = row.states.get("duplicate", 0) + row.states.get("unreadable", 0)
        counts = [row.states.get(state, 0) for state in ("active", "pool", "discarded")]
        table.add_row(
            escape(row.name), str(row.done), str(row.quota), *map(str, counts), str(left_out),
            interval(row.discard), number(row.kappa, 3), number(row.alpha, 3),
        )  # fmt: skip
    stdout.print(table)
    answers = sum(row.answers for row in crew)
    worked = sum(row.answers > 0 for row in crew)
    hours, pay = sum(row.hours for row in crew), sum(row.pay for row in crew)
    careless = sum(row.state == "careless" for row in crew)
    typer.echo(
        f"{answers} answers by {worked} of {len(crew)} people in {hours:.1f} h, pay {pay:.2f}; "
        f"{careless} careless, {sum(row.void for row in crew)} answers void"
    )


app.command()(campaign.tasks)
app.command("import")(campaign.import_)
app.command("export")(campaign.export)
app.command()(campaign.plan)
app.command()(campaign.study)
app.command("annotate")(annotate.annotate)
