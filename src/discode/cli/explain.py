"""discode explain: which words of captions are wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from discode.bulk import Totals
from discode.bulk.judging import EXAMPLES
from discode.cli import output
from discode.cli.dry_run import check_served, print_estimate
from discode.cli.model_options import PANEL, Model, with_model_options
from discode.cli.score import (
    AsJson,
    BatchSize,
    DryRun,
    PromptName,
    References,
    ScaleName,
    check_input,
)
from discode.errors import count_of
from discode.explain import MAX_SPANS, THRESHOLD, Explanation, Span
from discode.explain.effects import NOT_READ, pairs_to_explain
from discode.images import open_image
from discode.judge import load
from discode.pairs import make_pairs

Threshold = Annotated[
    float, typer.Option(help="Marks words that lack this share of the caption's score.")
]
MethodName = Annotated[
    str, typer.Option("--method", "-m", rich_help_panel=PANEL, help="Method, or preset FILE.json.")
]
StoreFile = Annotated[Path | None, typer.Option(help="Readings to keep and to resume from.")]


@with_model_options
def explain(
    image: Annotated[str, typer.Argument(help="An image.")],
    captions: Annotated[list[str], typer.Argument(help="Captions of it.")],
    reference: References = None,
    threshold: Threshold = THRESHOLD,
    model: Model = None,
    method: MethodName = "discode",
    scale: ScaleName = None,
    prompt: PromptName = None,
    batch_size: BatchSize = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    signature: output.FullSignatures = False,
    store: StoreFile = None,
    *,
    options: dict[str, Any],
) -> None:
    """Show which words of captions are wrong: what each adds to the score of its caption.

    A word is replaced by one that says nothing (something, someone), or left out; what the score
    loses is the word's effect. A caption costs one reading, and one for each of its words, of which
    the first 40 are looked at.
    """
    if dry_run:
        check_served(model)
    check_input(image, captions)
    pairs = make_pairs(image, captions, reference or None)
    open_image(image)  # which is not there, or broken, is the same for all captions
    judge = load(
        model, method=method, prompt=prompt, scale=scale, batch_size=batch_size,
        store=None if dry_run else store, **options,
    )  # fmt: skip
    if dry_run:
        print_estimate(judge, [pairs_to_explain(pairs)], store)
        return
    explained, tried = judge.explain_pairs(pairs, threshold), 0
    for pair, each in zip(pairs, explained, strict=True):
        seen = len(each.spans)
        tried += seen
        if as_json:
            row = {"id": pair.id, "image": image, **each.to_dict()}
            output.echo(json.dumps(row, ensure_ascii=False))
        else:
            _print_caption(each)
        if each.cut:
            unread = sum(span.error == NOT_READ for span in each.spans)
            line = f"the judge reads only part of this caption; {unread} of {seen} words not read"
            output.note(f"{pair.id}: {line}", "yellow")
        if each.left_out:
            line = f"the first {seen} of {seen + each.left_out} words looked at"
            output.note(f"{pair.id}: {line}", "yellow")
        if not seen and not each.error:
            output.note(f"{pair.id}: no word says anything about an image", "yellow")
    looked_at = f"{count_of(tried, 'word')} looked at, a reading each"
    output.note(f"{looked_at}; at most {MAX_SPANS} of a caption", "dim")
    how = explained[0].signature
    if how["expected"] == "none":
        line = f"what right words add is not known for this judge with {judge.decoder.name}"
        output.note(f"{line}: blame is relative to 0", "yellow")
    output.note(str(how) if signature else how.short, "dim")
    failed = [(p.id, e.error) for p, e in zip(pairs, explained, strict=True) if e.error]
    totals = Totals(len(pairs), len(failed), errors=tuple(failed[:EXAMPLES]))
    output.report(totals, {}, judge.store, reasons="--json")


def _print_caption(explanation: Explanation) -> None:
    """Print a caption with its wrong words in brackets, and below it what each word adds."""
    caption = Text()
    for part in explanation.parts():
        style = "bold red" if isinstance(part, Span) and part.marked else None
        caption.append(output.printable(str(part).replace("\n", " ")), style)
    effects = [f"{s.text} {s.shown_effect}" for s in explanation.spans if not math.isnan(s.effect)]
    if unread := [span.text for span in explanation.spans if span.error == NOT_READ]:
        effects.append(f"{NOT_READ}: {', '.join(unread)}")
    below = Text(output.printable(", ".join(effects)), "dim")
    margin = f"{output.format_score(explanation.score):7}"
    for text in (caption, below) if effects else (caption,):
        # In a terminal, long ones are folded right of the score.
        room = output.stdout.width - 7 if output.stdout.is_terminal else text.cell_len + 1
        lines = Text("\n" + 7 * " ").join(text.wrap(output.stdout, room))
        output.stdout.print(Text(margin) + lines, soft_wrap=True)
        margin = 7 * " "
