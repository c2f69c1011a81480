"""discode probe: a card for any judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discode._cli import flags, output
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._files import replacing
from discode._judge import Judge
from discode._probe import Card, ProbePlan, cards_table, make_card, plan_probe
from discode._probe.card import CARD
from discode.bench._agreement import AgreementProtocol
from discode.bench._layout import TABLE_FORMATS, write_table
from discode.benchmarks import load_benchmark
from discode.bulk import Totals
from discode.bulk._counting import RowCount
from discode.bulk._judging import EXAMPLES
from discode.errors import InputError, lookup

app = typer.Typer(invoke_without_command=True, cls=flags.VerbGroup)


@app.callback()
@with_judge
def probe(
    context: typer.Context,
    benchmark: flags.BenchmarksIfAny = None,
    data: flags.DataIfAny = None,
    limit: flags.Limit = None,
    method: flags.Method = "discode",
    batch_size: flags.BatchSize = None,
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    typed: Annotated[
        str | None,
        flags.output_option(
            help="Folder for card.md, card.json and the readings.", metavar="FOLDER"
        ),
    ] = None,
    form: flags.TableFormat = "text",
    signature: flags.FullSignatures = False,
    resamples: flags.Resamples = 1000,
    seed: flags.Seed = 0,
    *,
    spec: JudgeSpec,
) -> None:
    """Make a card of a judge: what it sees, what misleads it, how it uses its scale.

    The judge compares right captions with those of other images, with one wrong
    word, with added praise, and with a grey image. With -o FOLDER, the same
    command resumes an interrupted run.
    """
    if context.invoked_subcommand is not None:
        return
    if not benchmark or len(benchmark) > 1 or data is None:
        raise InputError("give one --benchmark NAME and --data FOLDER (see discode bench list)")
    lookup(TABLE_FORMATS, form, "format")
    out = output.output_folder(typed)
    protocol = AgreementProtocol(resamples=resamples, seed=seed)
    plan = plan_probe(load_benchmark(benchmark[0], data), protocol, limit)
    if out is not None and not dry_run:
        output.make_folder(out)
    store = store or (out and output.store_beside(out))
    judge = spec.open(method=method, batch_size=batch_size, store=None if dry_run else store)
    if out is not None and not dry_run and (out / CARD).exists():
        _check_same(Card.load(out), judge, plan, out)
    for text in plan.chosen.notes:
        output.note(text, "dim")
    if dry_run:
        print_estimate(judge, [plan.pairs], store)
        return
    with (
        output.stopping(lambda: output.where_kept(judge.store)),
        output.row_progress(RowCount(len(plan.pairs))) as progress,
    ):
        card = make_card(judge, plan, progress)
    cards = {card.model: card}
    if out is not None:
        card.save(out / CARD)
        with replacing(out / "card.md") as temp:
            temp.write_text(write_table(cards_table(cards), "markdown") + "\n", encoding="utf-8")
    output.echo(write_table(cards_table(cards, full=signature or form != "text"), form))
    failed = tuple(card.errors)[:EXAMPLES]
    errors = tuple((f"{card.errors[reason]:,} captions", reason) for reason in failed)
    totals = Totals(card.readings, len(card.errors), errors=errors)
    output.report(totals, {}, judge.store, reasons="card.json, with -o,")


def _check_same(card: Card, judge: Judge, plan: ProbePlan, out: Path) -> None:
    """Raise if the folder has a card of another judge or benchmark."""
    theirs, ours = (card.benchmark, card.signature), (plan.benchmark, plan.signature(judge))
    if theirs != ours:
        raise InputError(
            f"{out} already contains a card for {card.model} on {card.benchmark} with other "
            "settings; choose another folder"
        )


@app.command()
def compare(
    cards: Annotated[list[Path], typer.Argument(help="Folders from `discode probe -o`.")],
    form: flags.TableFormat = "text",
    signature: flags.FullSignatures = False,
) -> None:
    """Compare cards side by side, and report whether the judges got the same questions."""
    lookup(TABLE_FORMATS, form, "format")
    loaded = {str(path): Card.load(path) for path in cards}
    if len(loaded) < 2:
        raise InputError("give the folders of at least two cards")
    output.echo(write_table(cards_table(loaded, full=signature or form != "text"), form))
