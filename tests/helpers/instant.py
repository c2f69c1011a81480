"""A model that answers at once, importable by other processes; and small inputs for it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import discode
from discode._cli.score import score_into
from discode._judge import Judge
from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT, Scale
from discode._scores import Progress
from discode.backends import Blocks
from discode.bulk import Totals, find_inputs, plan_run, score_to_folder
from discode.bulk._judging import Methods
from discode.bulk._plan import read_chunks
from discode.readings import Identity, Readings


class Instant:
    """Answers by the caption's letters; an 'x!' in it is a failure. It may be told to be slow.

    An object with the names of a backend, which inherits nothing.
    """

    capabilities: frozenset[str] = frozenset()
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    takes_references = True
    batch_size = 64
    stopped = ""

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """It can be asked anything."""

    def __init__(self, name: str = "instant", wait: float = 0.0, log: Path | None = None) -> None:
        self.identity = Identity(name, "1", "none")
        self._wait, self._log = wait, log
        logits = np.random.default_rng(0).uniform(-8, 0, (97, 2, 10))
        self._answers = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True) - 0.1

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        yield range(len(pairs)), self.answer(pairs, prompt, scale, hidden=hidden)

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        time.sleep(self._wait)
        if self._log is not None:
            with self._log.open("a") as file:
                file.write("".join(f"{os.getpid()} {pair.caption}\n" for pair in pairs))
        kinds = np.array([sum(pair.caption.encode()) % 97 for pair in pairs], np.intp)
        stems = np.tile(np.log([0.7, 0.2]), (len(pairs), 1))
        answers = self._answers[kinds]
        failed = [i for i, pair in enumerate(pairs) if "x!" in pair.caption]
        answers[failed] = np.nan
        return Readings(scale, answers, stems, errors=dict.fromkeys(failed, "rejected"))


def make_judge(
    wait: float = 0.0, log: Path | None = None, store: Path | None = None, batch_size: int = 64
) -> Judge:
    return discode.load(Instant(wait=wait, log=log), store=store, batch_size=batch_size)


def maker(wait: float = 0.0, log: Path | None = None) -> partial[Judge]:
    return partial(make_judge, wait, log)


def rows(n: int) -> list[dict[str, str]]:
    return [
        {"id": f"r{i}", "image": f"{i // 5}.png", "caption": f"caption {i} {'x!' * (i % 50 == 7)}"}
        for i in range(n)
    ]


def to_folder(
    judge: Judge, source: Any, out: Path | str, progress: Progress | None = None, **options: Any
) -> Totals:
    """Plan a run into a folder, and carry it out here."""
    return score_to_folder(judge, plan_run(source, out, **options), progress)


def to_file(
    judge: Judge,
    source: Path,
    out: Path,
    images: Path | None = None,
    methods: Methods | None = None,
) -> Totals:  # fmt: skip
    """Score everything into one file, as the command line does."""
    inputs = find_inputs(source)
    files = [read_chunks(inputs, k, images=images) for k in range(len(inputs.files))]
    return score_into(judge, methods, chain.from_iterable(files), out)[0]
