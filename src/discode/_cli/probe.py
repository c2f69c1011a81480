"""discode probe: a card for any judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discode._cli import output
from discode._cli.bench import BENCHMARK_SPEC, Form, Limit, Resamples
from discode._cli.dry_run import check_served, print_estimate
from discode._cli.explain import MethodName, StoreFile
from discode._cli.model_options import Model, with_model_options
from discode._cli.score import BatchSize, DryRun, PromptName, ScaleName
from discode._files import replacing
from discode._judge import Judge, load
from discode._probe import Card, ProbePlan, cards_table, make_card, plan_probe
from discode._probe.card import CARD
from discode.bench._agreement import AgreementProtocol
from discode.bench._layout import TABLE_FORMATS, write_table
from discode.benchmarks import load_benchmark
from discode.bulk import Totals
from discode.bulk._counting import RowCount
from discode.bulk._judging import EXAMPLES
from discode.errors import InputError, StoppedError, lookup

app = typer.Typer(invoke_without_command=True)


@app.callback()
@with_model_options
def probe(
    context: typer.Context,
    benchmark: Annotated[
        list[str] | None,
        typer.Option("--benchmark", "-b", metavar=BENCHMARK_SPEC, help="As in bench list."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The benchmark's folder, or a folder of such folders.")
    ] = None,
    typed: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for card.md, card.json and the readings.",
        ),
    ] = None,
    limit: Limit = None,
    resamples: Resamples = 1000,
    seed: Annotated[int, typer.Option(help="Random seed of questions and bootstrap.")] = 0,
    form: Form = "text",
    model: Model = None,
    method: MethodName = "discode",
    prompt: PromptName = None,
    scale: ScaleName = None,
    batch_size: BatchSize = None,
    store: StoreFile = None,
    dry_run: DryRun = False,
    *,
    options: dict[str, Any],
) -> None:
    """Make a judge's card: what it sees, what misleads it, how it uses its scale.

    It is asked about a benchmark's images and references: own captions against others', against
    ones with a wrong word, with praise after them, and all of it again with a grey image. With -o
    FOLDER a run that was stopped goes on where it was.
    """
    if context.invoked_subcommand is not None:
        return
    if not benchmark or len(benchmark) > 1 or data is None:
        raise InputError(
            "give one --benchmark NAME, and --data FOLDER; discode bench list has names"
        )
    lookup(TABLE_FORMATS, form, "format")
    out = output.output_folder(typed)
    protocol = AgreementProtocol(resamples=resamples, seed=seed)
    if dry_run:
        check_served(model)
    plan = plan_probe(load_benchmark(benchmark[0], data), protocol, limit)
    if out is not None and not dry_run:
        output.make_folder(out)
    store = store or (out and output.store_beside(out))
    judge = load(
        model, method=method, prompt=prompt, scale=scale, batch_size=batch_size,
        store=None if dry_run else store, **options,
    )  # fmt: skip
    if out is not None and not dry_run and (out / CARD).exists():
        _check_same(Card.load(out), judge, plan, out)
    for text in plan.chosen.notes:
        output.note(text, "dim")
    if dry_run:
        print_estimate(judge, [plan.pairs], store)
        return
    card = _ask(judge, plan)
    table = cards_table({card.model: card})
    if out is not None:
        card.save(out / CARD)
        with replacing(out / "card.md") as temp:
            temp.write_text(write_table(table, "markdown") + "\n", encoding="utf-8")
    output.echo(write_table(table, form))
    failed = tuple(card.errors)[:EXAMPLES]
    errors = tuple((f"{card.errors[reason]:,} captions", reason) for reason in failed)
    totals = Totals(card.readings, len(card.errors), errors=errors)
    output.report(totals, {}, judge.store, reasons="card.json, with -o,")


def _check_same(card: Card, judge: Judge, plan: ProbePlan, out: Path) -> None:
    """Raise where a folder has a card of another judge or benchmark, which would be lost."""
    theirs, ours = (card.benchmark, card.signature), (plan.benchmark, plan.signature(judge))
    if theirs != ours:
        raise InputError(
            f"{out} has the card of {card.model} on {card.benchmark}, made otherwise; give another "
            "folder (with --store, the same readings)"
        )


def _ask(judge: Judge, plan: ProbePlan) -> Card:
    """Make a card with a bar; where the model stops, say what is kept and exit with 1."""
    try:
        with output.row_progress(RowCount(len(plan.pairs))) as progress:
            return make_card(judge, plan, progress)
    except StoppedError as error:
        output.note(f"stopped: {error.reason}; {output.where_kept(judge.store)}", "red")
        raise typer.Exit(1) from None


@app.command()
def compare(
    cards: Annotated[list[Path], typer.Argument(help="Folders of discode probe -o.")],
    form: Form = "text",
) -> None:
    """Print cards beside each other, and say whether the judges were asked the same."""
    lookup(TABLE_FORMATS, form, "format")
    loaded = {str(path): Card.load(path) for path in cards}
    if len(loaded) < 2:
        raise InputError("give the folders of two cards or more")
    output.echo(write_table(cards_table(loaded), form))
