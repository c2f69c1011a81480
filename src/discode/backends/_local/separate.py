"""Forward passes per caption and stem, for models whose captions cannot share a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discode._extras import require_transformers
from discode._pairs import Pair
from discode.backends._local.prefix import CaptionGroup, LogpAndStates, ProcessedImage
from discode.backends._local.vocabulary import TokenizedPrompt, first_decimal
from discode.errors import require

if TYPE_CHECKING:
    from discode.backends._local.forward import Runner


def read_separately(runner: Runner, group: CaptionGroup) -> LogpAndStates:
    """Read each caption by separate forward passes: logp (N, R, I), states (N, R, D)."""
    if group.image.opened is not None:
        written = group.written or [[] for _ in group.pairs]
        answers = [
            _run_whole_prompt(runner, group.image, pair, group.tokenized, ids)
            for pair, ids in zip(group.pairs, written, strict=True)
        ]
    else:
        answers = [
            _run_caption(runner, group.image, suffix, group.tokenized) for suffix in group.suffixes
        ]
    return np.stack([logp for logp, _ in answers]), np.stack([states for _, states in answers])


def _run_caption(
    runner: Runner, image: ProcessedImage, suffix: list[int], tokenized: TokenizedPrompt
) -> LogpAndStates:
    """Read one caption with one forward pass per stem: logp (R, I), states (R, D)."""
    torch = require("torch", "hf")

    def run(*stem: int) -> tuple[Any, Any]:
        rest = torch.tensor([[*suffix, *stem]])
        inputs = runner.model_inputs([image], longer=rest.shape[1])
        return runner.run(torch.cat([image.ids, rest], dim=1), inputs, None, keep=len(stem) + 1)

    logp, states = [], []
    for number, stem in enumerate(tokenized.stems):
        state, logits = run(*stem)
        first = 1 if number else 0  # the position before the stems is read once
        logp.append(runner.logp(logits, tokenized)[0, first:].cpu().numpy())
        states.append(state[0, first:].float().cpu().numpy())
    logp.append(_after_decimal(runner, np.concatenate(logp), tokenized, run))
    return np.concatenate(logp), np.concatenate(states)


def _after_decimal(
    runner: Runner,
    logp: NDArray[np.float64],
    tokenized: TokenizedPrompt,
    run: Callable[..., tuple[Any, Any]],
) -> NDArray[np.float64]:
    """Compute log-probabilities (S, I) after the likeliest first decimals in ``logp`` (R, I).

    ``run`` runs the model on the prompt followed by the given ids.
    """
    after = [logp[:0]]
    for number, place in runner.decimal_stems(tokenized).items():
        answer, token = first_decimal(tokenized, logp[place])
        if token in tokenized.second_digit:  # it contains the second decimal
            after.append(np.full_like(logp[:1], np.nan))
            continue
        _, logits = run(*tokenized.stems[number], tokenized.answers[number][answer][0])
        after.append(runner.unless_ended(logits, tokenized)[0, -1:].cpu().numpy())
    return np.concatenate(after)


def _run_whole_prompt(
    runner: Runner,
    image: ProcessedImage,
    pair: Pair,
    tokenized: TokenizedPrompt,
    written: list[int],
) -> LogpAndStates:
    """Read one caption whose prompt the processor builds; the stems run over its cache."""
    torch, transformers = require("torch", "hf"), require_transformers()
    text = tokenized.render(pair.caption, pair.references)
    whole = ProcessedImage(*runner.process(text, image.opened))
    cache = transformers.DynamicCache()
    parts = [runner.run(whole.ids, runner.model_inputs([whole]), cache, keep=1)]
    if written:
        parts = [runner.run(torch.tensor([written]), {}, cache, keep=1)]

    def run(*stem: int) -> tuple[Any, Any]:
        part = runner.run(torch.tensor([stem]), {}, cache, keep=len(stem))
        cache.crop(-len(stem))
        return part

    parts += [run(*stem) for stem in tokenized.stems if stem]
    logp = [runner.logp(logits, tokenized)[0].cpu().numpy() for _, logits in parts]
    logp.append(_after_decimal(runner, np.concatenate(logp), tokenized, run))
    states = [state[0].float().cpu().numpy() for state, _ in parts]
    return np.concatenate(logp), np.concatenate(states)
