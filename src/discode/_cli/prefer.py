"""discode prefer: which of two captions of an image is better."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Annotated

import typer

from discode._cli import flags, output
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._cli.score import check_input
from discode._pairs import make_pairs
from discode._preferences import PreferenceScores, in_both_orders
from discode._signature import shortened_signature
from discode.bulk import Totals
from discode.bulk._judging import EXAMPLES
from discode.errors import InputError


@with_judge
def prefer(
    image: Annotated[str, typer.Argument(help="Image file.")],
    captions: Annotated[
        list[str], typer.Argument(help="Two captions, or several that are compared in pairs.")
    ],
    images: flags.Images = None,
    method: flags.Method = "discode",
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    signature: flags.FullSignatures = False,
    *,
    spec: JudgeSpec,
) -> None:
    """Show which caption of an image is better, and how sure the model is.

    The model chooses between A and B in both orders; the mean is the probability
    that A is better, and flip is how much it gains by being shown first. The
    embedded judge compares scores (--method) instead.
    """
    check_input(image, captions, images=images)
    if len(captions) < 2:
        raise InputError("give an image and at least two captions")
    first, second = zip(*combinations(captions, 2), strict=True)
    path = image if images is None else str(images / image)
    pairs = make_pairs(path, first, [(other,) for other in second])
    judge = spec.open(method=method, store=None if dry_run else store)
    if dry_run:
        print_estimate(judge.comparing(), [in_both_orders(pairs)], store)
        return
    done = judge.prefer_pairs(pairs)
    done = replace(done, images=(image,) * len(done))
    if as_json:
        for row in done.rows():
            output.echo(json.dumps(row, ensure_ascii=False))
    else:
        _print_table(done)
    made = str(done.signature)
    output.note(made if signature else shortened_signature(made), "dim")
    failed = [(str(row), why) for row, why in done.errors.items()]
    totals = Totals(len(done), len(failed), errors=tuple(failed[:EXAMPLES]))
    output.report(totals, {}, judge.store, reasons="--json")


def _print_table(done: PreferenceScores) -> None:
    shown = [name for name in done.flags if name != "failed"]
    rows = [
        (
            a, b, output.format_score(value), output.format_score(flip),
            " ".join(name for name in shown if done.flags[name][row]),
        )
        for row, (a, b, value, flip) in enumerate(
            zip(done.first, done.second, done.value.tolist(), done.flip.tolist(), strict=True)
        )
    ]  # fmt: skip
    output.print_columns(("A", "B", "A better", "flip", "flags"), rows, (0, 1, 4))
