"""discode arena: captioners ranked by a judge's preferences."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from discode._cli import flags, output
from discode._cli.compare import print_json, print_pairs, print_table, show_number, show_range
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._cli.score import check_input, read_input
from discode._preferences import in_both_orders
from discode._signature import shortened_signature
from discode.bench._arena import ArenaPlan, ArenaResult, hold_arena
from discode.bench._layout import TABLE_FORMATS
from discode.bench._systems import label_systems
from discode.bulk import Totals
from discode.bulk._chunks import CHUNK_ROWS
from discode.bulk._counting import RowCount
from discode.bulk._judging import EXAMPLES
from discode.errors import InputError, count_of, lookup


@with_judge
def arena(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Captions of each captioner as `score` takes them: [NAME=]FILE."
        ),
    ],
    images: flags.Images = None,
    annotations: flags.Annotations = None,
    method: flags.Method = "discode",
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    resamples: flags.Resamples = 1000,
    seed: flags.Seed = 0,
    form: flags.TableFormat = "text",
    as_json: flags.AsJson = False,
    signature: flags.FullSignatures = False,
    *,
    spec: JudgeSpec,
) -> None:
    """Rank captioners by which caption of each image the judge prefers.

    Every two captions of an image are compared as by `prefer`. The strengths of a
    Bradley-Terry model have 95 % intervals over images. The judge also scores every
    caption (--method), and the table shows how often scores and preferences disagree.
    """
    lookup(TABLE_FORMATS, form, "format")
    if as_json and form != "text":
        raise InputError(f"--json cannot be combined with --format {form}")
    named = label_systems(files)
    check_input(None, None, None, [*named.values()], images, annotations)
    plan = ArenaPlan.of(
        {
            name: [
                pair
                for chunk in read_input(None, None, None, [path], images, annotations).read(
                    CHUNK_ROWS
                )
                for pair in chunk.pairs
            ]
            for name, path in named.items()
        }
    )
    judge = spec.open(method=method, store=None if dry_run else store)
    asked = plan.pairs
    if dry_run:
        compared = judge.comparing(), in_both_orders(asked)
        print_estimate(judge, [plan.captions], store, others=[compared])
        return
    kept = output.where_kept(judge.store)
    count = RowCount(len(asked) + len(plan.captions))
    with output.stopping(lambda: kept), output.row_progress(count) as progress:
        done = hold_arena(judge, plan, resamples=resamples, seed=seed, progress=progress)
    if as_json:
        print_json(done, resamples=resamples, seed=seed, signature=str(done.signature),
                   score_signature=str(done.score_signature))  # fmt: skip
    else:
        _print(done, resamples, seed, form, full=signature or form != "text")
    failed = [(image, why) for image, why in done.errors]
    totals = Totals(done.comparisons, len(failed), errors=tuple(failed[:EXAMPLES]))
    output.report(totals, {}, judge.store, reasons="--json")


def _print(done: ArenaResult, resamples: int, seed: int, form: str, *, full: bool) -> None:
    rows = [
        (
            each.name, show_number(each.mean, "+.3f"), show_range(each.low, each.high, "+.3f"),
            f"{100 * each.preferred:.1f} %", show_number(each.score, ".4f"), f"{each.rank}",
        )
        for each in done.systems
    ]  # fmt: skip
    print_table(form, ("captioner", "strength", "95 %", "preferred", "score", "rank"), rows, (0,))
    output.echo("")
    notes = [f"{count_of(done.images, 'image')}, {count_of(done.comparisons, 'comparison')}"]
    if done.left_out:
        notes.append(f"left out: {count_of(done.left_out, 'image')} without every comparison")
    notes += [f"strengths: {reason}" for reason in done.undefined]
    by_scores = done.signature["preference"] == "scores"
    if by_scores:
        notes.append("preferences are made of the judge's scores")
    else:
        shares = [f"{100 * done.flipped:.1f} % of comparisons flip with the order"]
        if not math.isnan(done.disagree.value):
            low, high = (100 * each for each in (done.disagree.low, done.disagree.high))
            shares.append(
                f"scores disagree with {100 * done.disagree.value:.1f} % of preferences "
                f"({show_range(low, high, '.1f')})"
            )
        notes.append("; ".join(shares))
    how = (
        f"strengths by Bradley-Terry; intervals by {resamples} resamples of images; p by as many "
        f"exchanges of the two captioners; seed {seed}"
    )
    columns = {
        "A preferred": lambda pair: f"{100 * pair.preferred.value:.1f} %",
        "95 %": lambda pair: show_range(
            100 * pair.preferred.low, 100 * pair.preferred.high, ".1f"
        ),
        "p": lambda pair: f"{pair.p:.4f}",
        "Holm's p": lambda pair: f"{pair.adjusted:.4f}",
    }  # fmt: skip
    if not by_scores:
        columns["flipped"] = lambda pair: f"{100 * pair.flipped:.1f} %"
        columns["scores disagree"] = lambda pair: f"{show_number(100 * pair.disagree, '.1f')} %"
    made = [str(done.signature), str(done.score_signature)]
    signatures = dict.fromkeys(each if full else shortened_signature(each) for each in made)
    print_pairs(done, form, notes, [how, *signatures], columns)
