"""discode explain: which words of captions are wrong."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from rich.text import Text

from discode._cli import flags, output
from discode._cli.dry_run import print_estimate
from discode._cli.flags import JudgeSpec, with_judge
from discode._cli.score import Rows, check_input, read_input
from discode._columns import PairColumns, image_name
from discode._judge import Judge
from discode._pairs import Pair, PairParser
from discode.bulk import Totals
from discode.bulk._chunks import CHUNK_ROWS
from discode.bulk._folder import check_finished
from discode.bulk._inputs import is_score_file
from discode.bulk._judging import EXAMPLES, judge_chunk
from discode.errors import InputError, count_of
from discode.explain import MAX_SPANS, THRESHOLD, Explanation, Span
from discode.explain._effects import NO_SINGLE_WORD, NOT_READ, pairs_to_explain
from discode.images import open_image
from discode.metrics._scorefile import read_scores

LOWEST = 10
"""Rows of a file that are explained by default."""
Failures = list[tuple[str, str]]
"""Ids and reasons."""
ScoredPair = tuple[float, str | None, Pair]
"""A score, the image name in the input, and the pair."""


@with_judge
def explain(
    image: flags.ImageArgument = None,
    captions: flags.Captions = None,
    source: flags.Source = None,
    images: flags.Images = None,
    annotations: flags.Annotations = None,
    reference: flags.References = None,
    top: flags.Top = None,
    threshold: flags.Threshold = THRESHOLD,
    method: flags.Method = "discode",
    batch_size: flags.BatchSize = None,
    store: flags.Store = None,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    signature: flags.FullSignatures = False,
    *,
    spec: JudgeSpec,
) -> None:
    """Show which words of a caption are wrong, by what each adds to its score.

    Each word is replaced by a neutral one (something, someone) or removed, and
    the caption is scored again: a reading per word, for up to 40 words. Of a
    file, the 10 rows with the lowest scores are explained.
    """
    check_input(image, captions, reference, source, images, annotations)
    if top is not None and not source:
        raise InputError("--top requires --input FILE")
    rows = read_input(image, captions, reference, source, images, annotations)
    has_scores = bool(rows.files) and is_score_file(rows.files[0])
    if dry_run and source and not has_scores:
        raise InputError("--dry-run with --input requires a file written by `discode score`")
    lowest: list[ScoredPair]
    failed: Failures = []
    if not source:
        (chunk,) = rows.read(CHUNK_ROWS)
        named = zip(chunk.images, chunk.pairs, strict=True)
        lowest = [(math.nan, name, pair) for name, pair in named]
        open_image(lowest[0][2].image)  # a missing or broken image is the same for all captions
    elif has_scores:
        for path in source:
            check_finished(path)
        scored = _read_scored(rows.files, images, annotations, failed)
        lowest = heapq.nsmallest(top or LOWEST, scored, itemgetter(0))
    else:
        next(rows.read(CHUNK_ROWS), None)  # reports an unreadable table before a model is opened
    judge = spec.open(method=method, batch_size=batch_size, store=None if dry_run else store)
    if source and not has_scores:
        lowest = heapq.nsmallest(top or LOWEST, _score(judge, rows, failed), itemgetter(0))
    pairs = [pair for _, _, pair in lowest]
    if not pairs and not failed:
        raise InputError("the input holds no pairs")
    if dry_run:
        print_estimate(judge, [pairs_to_explain(pairs)], store)
        return
    explained, tried = judge.explain_pairs(pairs, threshold), 0
    for (_, name, pair), each in zip(lowest, explained, strict=True):
        seen = len(each.spans)
        tried += seen
        if as_json:
            row = {"id": pair.id, "image": name, **each.to_dict()}
            output.echo(json.dumps(row, ensure_ascii=False))
        else:
            row_id = "" if pair.id == name else f", id {pair.id}"  # images may be the ids
            _print_caption(each, f"{name or 'image'}{row_id}" if source else "")
        if each.cut:
            unread = sum(span.error == NOT_READ for span in each.spans)
            line = f"caption exceeds the limit of the judge; {unread} of {seen} words not read"
            output.note(f"{pair.id}: {line}", "yellow")
        if each.left_out:
            line = f"examined the first {seen} of {seen + each.left_out} words"
            output.note(f"{pair.id}: {line}", "yellow")
        if each.wrong_throughout and not as_json:
            output.note(f"{pair.id}: {NO_SINGLE_WORD}", "yellow")
        if not seen and not each.error:
            output.note(f"{pair.id}: no word describes an image", "yellow")
    looked_at = f"{count_of(tried, 'word')} examined, one reading each"
    output.note(f"{looked_at}; at most {MAX_SPANS} per caption", "dim")
    how = explained[0].signature if explained else judge.signature
    if explained and how["expected"] == "none":
        line = f"effects of correct words are unknown for this judge with {judge.decoder.name}"
        output.note(f"{line}; blame is relative to 0", "yellow")
    output.note(str(how) if signature else how.short, "dim")
    reasons = "discode score -o FILE" if failed else "--json"
    failed += [(p.id, e.error) for p, e in zip(pairs, explained, strict=True) if e.error]
    totals = Totals(len(pairs), len(failed), errors=tuple(failed[:EXAMPLES]))
    output.report(totals, {}, judge.store, reasons=reasons)


def _read_scored(
    files: Sequence[Path], images: Path | None, annotations: Path | None, failed: Failures
) -> Iterator[ScoredPair]:
    """Yield the rows of the first method in score files; append failures to ``failed``."""
    parser = PairParser(images, annotations)
    method = None
    for file in files:
        for where, row, score in read_scores(file):
            method = method or row.get("method")
            if row.get("method") != method:
                continue
            name = str(row["id"])
            if math.isnan(score):
                failed.append((name, str(row.get("error") or "no score")))
            else:
                image = image_name(row, PairColumns.among(row, where))
                if image is None and (stored := row.get("source")):
                    raise InputError(
                        f"{where}: the image is stored in {stored}; give that file to --input "
                        "(--store reuses its readings)"
                    )
                if (opened := row.get("file")) and annotations is None:
                    file = Path(str(opened))
                    within = images is None or file.is_relative_to(images.absolute())
                    row["image"] = str(file) if within else file.name
                yield score, image, parser.parse(row, where, name)


def _score(judge: Judge, rows: Rows, failed: Failures) -> Iterator[ScoredPair]:
    """Score whole captions and yield their rows; append failures to ``failed``."""
    judges = {"": judge.by_caption()}
    with output.row_progress(rows.total) as progress:
        for chunk in rows.read(max(CHUNK_ROWS, judge.batch_size)):
            scores = judge_chunk(judges, chunk, progress=progress).rows[""]
            failed += [(chunk.pairs[n].id, reason) for n, reason in sorted(scores.errors.items())]
            for score, image, pair in zip(scores, chunk.images, chunk.pairs, strict=True):
                if not math.isnan(score):
                    yield score, image, pair


def _print_caption(explanation: Explanation, name: str) -> None:
    """Print a caption with its wrong words in brackets, and below it the effect of each word."""
    caption = Text()
    for part in explanation.parts():
        style = "bold red" if isinstance(part, Span) and part.marked else None
        caption.append(output.printable(str(part).replace("\n", " ")), style)
    effects = [f"{s.text} {s.shown_effect}" for s in explanation.spans if not math.isnan(s.effect)]
    if unread := [span.text for span in explanation.spans if span.error == NOT_READ]:
        effects.append(f"{NOT_READ}: {', '.join(unread)}")
    below = [Text(output.printable(text), "dim") for text in (", ".join(effects), name) if text]
    margin = f"{output.format_score(explanation.score):7}"
    for text in (caption, *below):
        # In a terminal, long ones are folded right of the score.
        room = output.stdout.width - 7 if output.stdout.is_terminal else text.cell_len + 1
        lines = Text("\n" + 7 * " ").join(text.wrap(output.stdout, room))
        output.stdout.print(Text(margin) + lines, soft_wrap=True)
        margin = 7 * " "
