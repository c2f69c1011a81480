"""discode mceval: build a benchmark of human preferences, from folders to a dataset."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from discode.cli.output import progress, stderr, stdout
from discode.errors import InputError, require
from discode.files import replacing

if TYPE_CHECKING:
    from discode.mceval.database import Database
    from discode.mceval.intake import Source
    from discode.mceval.people import Invitation
    from discode.mceval.plan import Need
    from discode.stats.resampling import Interval

app = typer.Typer(help="Build a benchmark of human preferences.", no_args_is_help=True)
Db = Annotated[str, typer.Argument(metavar="DATABASE", help="A file, or postgresql://...")]


@app.callback()
def _root() -> None:
    """Build a benchmark of human preferences."""


def _open(url: str) -> Database:
    require("sqlalchemy", "mceval")
    from discode.mceval.database import open_database

    return open_database(url)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", justify="right" if number else "left")
    return table


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
        table = _table("domain", "wanted", "pool", "duplicates", "unreadable")
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
    from discode.baselines.chat import Endpoint

    if (file is None) == (endpoint is None):
        raise InputError("give either --file or --endpoint")
    with _open(database) as db:
        from discode.mceval import candidates as captions

        if file is not None:
            added = captions.add_file(db, writer, file, time.time())
        else:
            assert endpoint is not None
            chat = Endpoint(endpoint, model or writer)
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
    with _open(database) as db:
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
    table = _table("person", "name", "role", "state", "answers", "void", "hours", "pay", "s",
                   "gold", "quick", "agreed")  # fmt: skip
    for row in rows:
        table.add_row(
            str(row.id), escape(row.name), row.role, row.state, str(row.answers), str(row.void),
            f"{row.hours:.2f}", f"{row.pay:.2f}", _number(row.median_seconds, 1),
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
    with _open(database) as db:
        from discode.mceval.card import GUIDELINES
        from discode.mceval.crowd import crowd_tasks, write_tasks
        from discode.mceval.database import settings_of

        with db.read() as session:
            found = crowd_tasks(session, image_url, gold_assignments=gold)
            words = settings_of(session).instructions or GUIDELINES
    write_tasks(found, folder, form, words)
    asked = sum(task.assignments for task in found)
    typer.echo(f"{len(found)} tasks for {asked} answers in {folder}")


@app.command("import")
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
    with _open(database) as db:
        from discode.mceval.crowd_import import import_results, write_decisions

        decisions = import_results(db, results, time.time())
    write_decisions(decisions, results, output)
    rejected = sum(one.decision == "reject" for one in decisions)
    used = sum(one.used for one in decisions)
    typer.echo(
        f"{len(decisions)} results: {used} used, {len(decisions) - rejected} to approve, "
        f"{rejected} to reject; see {output}"
    )


@app.command()
def status(database: Db) -> None:
    """Say how far each domain is, how people agree, and what it has cost."""
    with _open(database) as db:
        from discode.mceval.report import domain_rows, person_rows

        with db.read() as session:
            domains, crew = domain_rows(session), person_rows(session)
    table = _table("domain", "done", "wanted", "active", "pool", "discarded", "left out",
                   "no consensus", "κ", "α")  # fmt: skip
    for row in domains:
        left_out = row.states.get("duplicate", 0) + row.states.get("unreadable", 0)
        counts = [row.states.get(state, 0) for state in ("active", "pool", "discarded")]
        table.add_row(
            escape(row.name), str(row.done), str(row.quota), *map(str, counts), str(left_out),
            _interval(row.discard), _number(row.kappa, 3), _number(row.alpha, 3),
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


@app.command("export")
def export_(
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
    with _open(database) as db:
        from discode.mceval.export import Options, export

        options = Options(images, parquet, writers, title, licence, contact)
        counts = export(db, folder, options)
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    typer.echo(f"{sum(counts.values())} images ({words}) in {folder}")
    typer.echo(f"discode bench run --benchmark mceval --data {folder} -m discode")


@app.command()
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
    table = _table("", "expected", "5 %", "median", "95 %")
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


@app.command()
def study(
    database: Db,
    images: Annotated[
        int | None, typer.Option(help="Begin: so many finished images, drawn at random.")
    ] = None,
    people: Annotated[int, typer.Option(help="New people an image.")] = 1,
) -> None:
    """Let new people judge a subset; without --images, say how often they agree."""
    with _open(database) as db:
        from discode.mceval.study import begin_study, study_result

        if images is not None:
            made = begin_study(db, images, time.time(), people=people)
            typer.echo(f"{made} tasks for people of the role study (discode mceval people)")
            return
        with db.read() as session:
            result = study_result(session)
    if not result.judged:
        raise InputError("nobody has judged anything in the user study; --images N begins it")
    table = _table("domain", "people's accuracy")
    for name, found in result.domains.items():
        table.add_row(escape(name), _interval(found))
    table.add_row("all", _interval(result.accuracy))
    stdout.print(table)
    typer.echo(f"{result.judged} judgments of {result.images} images")


def _interval(found: Interval) -> str:
    if math.isnan(found.value):
        return "-"
    return f"{100 * found.value:.1f} % ({100 * found.low:.1f}–{100 * found.high:.1f})"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
