"""Forward passes per caption and stem, for models whose captions cannot share a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from discode._extras import require_transformers
from discode.backends._local.prefix import CaptionGroup, LogpAndStates
from discode.backends._local.vocabulary import first_decimal
from discode.errors import require

if TYPE_CHECKING:
    from discode.backends._local.forward import Runner


def read_separately(runner: Runner, group: CaptionGroup) -> LogpAndStates:
    """Read each caption by separate forward passes: logp (N, R, I), states (N, R, D)."""
    answers = [_read_one(runner, group, index) for index in range(len(group.pairs))]
    return np.stack([logp for logp, _ in answers]), np.stack([states for _, states in answers])


def _read_one(runner: Runner, group: CaptionGroup, index: int) -> LogpAndStates:
    """Read one caption with a pass per stem: logp (R, I), states (R, D)."""
    tokenized = group.tokenized
    over_cache = group.image.opened is not None
    run = _over_cache(runner, group, index) if over_cache else _whole(runner, group, index)
    logp, states = [], []
    for number, stem in enumerate(tokenized.stems):
        state, logits = run(*stem)
        first = 1 if number else 0  # the position before the stems is read once
        logp.append(runner.logp(logits, tokenized)[0, first:].cpu().numpy())
        states.append(state[0, first:].float().cpu().numpy())
    before = np.concatenate(logp)
    for number, place in runner.decimal_stems(tokenized).items():
        answer, token = first_decimal(tokenized, before[place])
        after = np.full_like(before[:1], np.nan)
        if token not in tokenized.second_digit:  # otherwise it contains the second decimal
            _, logits = run(*tokenized.stems[number], tokenized.answers[number][answer][0])
            after = runner.unless_ended(logits, tokenized)[0, -1:].cpu().numpy()
        logp.append(after)
    return np.concatenate(logp), np.concatenate(states)


Run = Callable[..., tuple[Any, Any]]
"""Runs a prompt followed by given ids; returns states and logits at its end and at each id."""


def _whole(runner: Runner, group: CaptionGroup, index: int) -> Run:
    def run(*stem: int) -> tuple[Any, Any]:
        ids, inputs = runner.whole_prompt(group, index, stem)
        return runner.run(ids, inputs, None, keep=len(stem) + 1)

    return run


def _over_cache(runner: Runner, group: CaptionGroup, index: int) -> Run:
    """Let ids follow a prompt that the processor builds: in its pass they would be part of it."""
    torch, transformers = require("torch", "hf"), require_transformers()
    cache = transformers.DynamicCache()
    last = runner.run(*runner.whole_prompt(group, index), cache, keep=1)
    if group.written and group.written[index]:
        last = runner.run(torch.tensor([group.written[index]]), {}, cache, keep=1)

    def run(*stem: int) -> tuple[Any, Any]:
        if not stem:
            return last
        parts = runner.run(torch.tensor([stem]), {}, cache, keep=len(stem))
        cache.crop(-len(stem))
        state, logits = (torch.cat(pair, dim=1) for pair in zip(last, parts, strict=True))
        return state, logits

    return run
