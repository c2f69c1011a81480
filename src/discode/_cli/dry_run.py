"""--dry-run: the requests that a server would get, and their cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from discode._cli import output
from discode._cli.flags import NOT_SERVED
from discode._judge import Judge
from discode._pairs import Pair, share_images
from discode._prompts import Prompt
from discode._scales import Scale
from discode._sentences import sentence_pairs
from discode.errors import DiscodeError, InputError, count_of
from discode.images import image_digest
from discode.readings._store import PairKey, ReadingStore

if TYPE_CHECKING:
    from discode.backends._served.backend import Served


def print_estimate(
    judge: Judge,
    chunks: Iterable[Sequence[Pair]],
    store: Path | None,
    *,
    others: Iterable[tuple[Judge, Sequence[Pair]]] = (),
    may_be_empty: bool = False,
) -> None:
    """Print what scoring would send and cost, without sending or writing anything.

    Pairs come in chunks, so any number of them fits in memory. ``others`` are the same model's
    further questions.
    """
    from discode.backends._served.backend import Served
    from discode.backends._served.estimate import Estimate

    backend = judge.backend
    if not isinstance(backend, Served):
        raise InputError(NOT_SERVED)
    in_store = cache(partial(_stored, store, backend))
    estimate, total, known = Estimate(0, 0, 0, 0, 0), 0, 0
    for asking, chunk in chain(((judge, chunk) for chunk in chunks), others):
        if asking.by == "sentence":
            chunk = [each for pair in chunk for each in sentence_pairs(pair)]
        pairs = [pair for pair in share_images(chunk) if not pair.problem]
        there = in_store(asking.prompt, asking.scale)
        new = [pair for pair in pairs if not (there and _item(pair) in there)]
        estimate += backend.estimate(new, asking.prompt, asking.scale)
        estimate += Estimate(0, 0, 0, 0, 0, len(chunk) - len(pairs))
        total, known = total + len(chunk), known + len(pairs) - len(new)
    if not (total or may_be_empty):
        raise InputError("the input holds no pairs")
    requests, images = count_of(estimate.requests, "request"), count_of(estimate.images, "image")
    lines = [
        f"{requests} to {backend.hosts}, after {_first(backend)}",
        f"{images}, {estimate.bytes / 1e6:.1f} MB to send; less if the server keeps images",
        f"about {estimate.read:,} tokens to read and {estimate.written:,} to write (images by "
        "OpenAI's rule; other models differ)",
    ]
    if known:
        lines.append(f"{known} of {total} pairs are in {store}")
    if estimate.unusable:
        lines.append(f"{count_of(estimate.unusable, 'pair')} cannot be sent and would be NaN")
    cost = estimate.cost(backend.prices)
    lines.append(
        "cost: unknown without -M prices=READ,WRITTEN"
        if cost is None
        else f"cost: about {cost:.4g}"
    )
    for line in [*lines, "nothing was sent"]:
        output.stdout.print(line, markup=False, highlight=False, soft_wrap=True)


def _stored(store: Path | None, backend: Served, prompt: Prompt, scale: Scale) -> set[PairKey]:
    """Collect the pairs that a store has for a question."""
    found: set[PairKey] = set()
    if store is not None and store.exists():
        with ReadingStore(store, create=False) as readings:
            # Which revision the server has would take a request to find out: any counts.
            for ask, _ in readings.run_keys():
                same_prompt = ask.prompt in (prompt.free, prompt.with_references)
                if ask.identity.model in backend.models and ask.scale == scale and same_prompt:
                    for items, _ in readings.batches(ask):
                        found.update(items)
    return found


def _first(backend: Served) -> str:
    """Describe the requests that find out what a server supports."""
    openai = backend.models[0].startswith("openai:")
    # Thinking and sampling, images, begun answers.
    more = 5 + 3 * (not openai) + 2 * (backend.options.read != "generate")
    trial = f"one without an image (and up to {more} more)"
    return f"{'' if openai else 'one to /tokenize and '}{trial}, to find out what it supports"


def _item(pair: Pair) -> PairKey | None:
    try:
        return PairKey(image_digest(pair.image), pair.caption, pair.references)
    except DiscodeError:
        return None
