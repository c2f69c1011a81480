"""Local vision-language models: any ``AutoModelForImageTextToText`` as a judge.

One forward pass reads everything: the stems "0." and "1." are forced, and the probabilities of '0',
'1', '.' and of the digits after each stem come from the same pass. Where a model may begin with a
space ("ASSISTANT: 0.8"), the stems are forced with and without it, and the probabilities are added
up. Captions of an image share its computation (:mod:`discode.backends.local.packing`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.backends.base import Backend, Blocks
from discode.backends.local.calibrate import calibrate
from discode.backends.local.forward import MAX_PACKED_TOKENS, CaptionGroup, ModelRunner
from discode.backends.local.generate import written_before_answer
from discode.backends.local.load import (
    LoadedModel,
    LocalOptions,
    load_model,
    short_message,
)
from discode.backends.local.vocabulary import TokenizedPrompt, readings_from_logp
from discode.errors import BackendError, DiscodeError, ImageError, InputError, require
from discode.images import image_digest
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings, ReadingsCollector
from discode.scales import UNIT, Scale

LOG = logging.getLogger("discode")
MIN_LEAD = 0.5
"""Below this probability that an answer begins with a stem, we let the model generate it."""


class Local(Backend):
    """A backend for a model folder or a hub name.

    Args:
        model: Hub name ("llava-hf/llama3-llava-next-8b-hf"), folder, or a model already loaded.
        options: Those of :class:`LocalOptions`.

    Packed and separate passes agree up to rounding. This is checked for each model when it is
    opened; where it fails, pairs run separately and a warning says so.
    """

    def __init__(self, model: str | os.PathLike[str] | LoadedModel, **options: Any) -> None:
        self.options = LocalOptions(**options)
        if not isinstance(model, LoadedModel):
            model = load_model(os.fspath(model), self.options)
        self.runner = ModelRunner(model, self.options.batch_captions)
        self._batch_images = self.options.batch_images
        # A GPU is used well by several images with all their captions; a CPU by a few pairs.
        self.batch_size = 512 if model.device.type == "cuda" else 64
        self.identity = self._identity(model)
        self.runner.packed = self._packing_is_exact(model) and self.options.packing == "auto"
        self.runner.second_decimal = self.options.second_decimal == "auto"

    def _identity(self, loaded: LoadedModel) -> Identity:
        """Return the model's name and whatever changes the numbers.

        That is how answers are read, and whether those that begin with a space are counted, too.
        """
        options = self.options
        parts = [
            loaded.revision,
            "space" * self.runner.vocabulary.may_begin_with_space("a"),
            options.read if options.read != "auto" else "",
            "legacy_spaces=off" * (options.legacy_spaces == "off"),
            "second" * (options.second_decimal == "auto"),
        ]
        dtype = f"{options.quantize}-{loaded.dtype}" if options.quantize else loaded.dtype
        return Identity(loaded.name, "+".join(filter(None, parts)), dtype)

    def _packing_is_exact(self, loaded: LoadedModel) -> bool:
        """Run the model once; raise where it cannot be run."""
        try:
            return calibrate(self.runner, FLEUR, UNIT)
        except require("torch", "hf").OutOfMemoryError as error:
            raise BackendError(
                f"{loaded.name} leaves no memory on {loaded.device} to run it: "
                f"{short_message(error)}; try quantize='4bit', device_map='auto' or a smaller model"
            ) from error
        except DiscodeError:
            raise
        # The first forward pass may fail in any way: code that comes with a model may need another
        # machine or another version of something.
        except Exception as error:
            raise BackendError(
                f"{loaded.name} was loaded but cannot be run: {short_message(error)}"
            ) from error

    @property
    def capabilities(self) -> frozenset[str]:  # type: ignore[override]  # it is worked out
        """Hidden states, where the logits are the head's product with them and nothing else."""
        return frozenset({"hidden"} if self.runner.logit_scale else ())

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless the tokenizer has one token for every answer."""
        self.runner.vocabulary.tokenize_prompt(prompt, scale, references=prompt.free is None)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Read N pairs; the captions of an image share its computation."""
        gather = ReadingsCollector(scale, len(pairs))
        groups: list[CaptionGroup] = []
        for rows, group in self._prepared(pairs, prompt, scale):
            if isinstance(group, str):
                gather.add(Readings.failed(scale, [group] * len(rows)), [[row] for row in rows])
                continue
            if groups and not self._fit_together([*groups, group]):
                self._read_groups(groups, gather, hidden)
                groups = []
            groups.append(group)
        if groups:
            self._read_groups(groups, gather, hidden)
        yield range(len(pairs)), gather.readings()

    def _prepared(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> Iterator[tuple[Sequence[int], CaptionGroup | str]]:
        """Yield the pairs of each image as the model's inputs, or why some cannot be read."""
        rows_of: dict[tuple[str, bool], list[int]] = {}
        digests: dict[int, str] = {}  # an image that many pairs hold is hashed once
        for row, pair in enumerate(pairs):
            try:
                prompt.template(bool(pair.references))
                if id(pair.image) not in digests:
                    digests[id(pair.image)] = image_digest(pair.image)
                key = (digests[id(pair.image)], bool(pair.references))
            except (ImageError, InputError) as error:
                yield [row], str(error)
                continue
            rows_of.setdefault(key, []).append(row)
        # Images are decoded and captions tokenised ahead of the model; after Ctrl-C, what has not
        # begun is cancelled.
        with ThreadPoolExecutor(4) as threads, ExitStack() as leaving:
            leaving.callback(threads.shutdown, wait=False, cancel_futures=True)
            jobs = []
            for (_, references), rows in rows_of.items():
                tokenized = self.runner.vocabulary.tokenize_prompt(
                    prompt, scale, references=references
                )
                jobs.append((threads.submit(self._prepare, pairs, rows, tokenized), rows))
            for job, rows in jobs:
                try:
                    group, refused = job.result()
                except (ImageError, BackendError) as error:
                    yield rows, str(error)
                    continue
                for row, reason in refused.items():
                    yield [row], reason
                if group.rows:
                    yield group.rows, group

    def _fit_together(self, groups: Sequence[CaptionGroup]) -> bool:
        """Whether images can run at once: of one shape, with one prompt, and in memory."""
        first, last = groups[0], groups[-1]
        most = self._batch_images or self.runner.images_that_fit(last.image)
        longest = max(
            len(ids) for group in groups for ids in group.suffixes
        )  # all are padded to it
        return (
            len(groups) <= most
            and len(groups) * longest <= MAX_PACKED_TOKENS
            and first.image.shape() == last.image.shape()
            and first.tokenized is last.tokenized
        )

    def _prepare(
        self, pairs: Sequence[Pair], rows: Sequence[int], tokenized: TokenizedPrompt
    ) -> tuple[CaptionGroup, dict[int, str]]:
        """Return an image and its captions as the model's inputs, and why rows are left out."""
        image = self.runner.process_image(pairs[rows[0]].image, tokenized)
        group = CaptionGroup(tokenized, image, [], [], [])
        refused = {}
        most = self.runner.max_suffix(image, tokenized)
        asked = [pairs[row] for row in rows]
        # Tokenizers refuse captions (half a character) with all kinds of exceptions; then each is
        # tried alone.
        try:
            suffixes: Sequence[list[int] | None] = tokenized.suffixes(asked)
        except Exception:
            suffixes = [None] * len(asked)
        for row, pair, suffix in zip(rows, asked, suffixes, strict=True):
            try:
                suffix = suffix or tokenized.suffix(pair.caption, pair.references)
                if len(suffix) > most:
                    raise InputError(
                        f"the caption makes a prompt of {len(suffix) - most} tokens more than the "
                        "model can see"
                    )
            except Exception as error:
                refused[row] = f"the caption cannot be asked about: {short_message(error)}"
                continue
            group.pairs.append(pair)
            group.rows.append(row)
            group.suffixes.append(suffix)
        return group, refused

    def _read_groups(
        self, groups: list[CaptionGroup], gather: ReadingsCollector, hidden: bool
    ) -> None:
        """Read images that share a shape; one that fails does not fail the others."""
        batch_captions = self.runner.batch_captions
        reason, short = "", False
        try:
            many = self._readings(groups, hidden)
        # A model's code may raise anything; only the image that caused it is to fail.
        except Exception as error:
            short = isinstance(error, require("torch", "hf").OutOfMemoryError)
            what = "ran out of memory with" if short else "failed on"
            reason = f"the model {what} this image{' alone' * short}: {short_message(error)[:200]}"
        # From here on nothing refers to the error, and through it to the memory of what failed.
        if short:  # even with one caption at a time: it was the images
            self.runner.batch_captions = batch_captions
        if reason and len(groups) > 1:
            if short:
                self._batch_images = len(groups) // 2
                LOG.warning(
                    "discode: out of memory; continuing with %d images at once", self._batch_images
                )
            for group in groups:
                self._read_groups([group], gather, hidden)
            return
        if reason:
            many = [Readings.failed(groups[0].tokenized.scale, [reason] * len(groups[0].rows))]
        for group, readings in zip(groups, many, strict=True):
            gather.add(readings, [[row] for row in group.rows])

    def _readings(self, groups: list[CaptionGroup], hidden: bool) -> list[Readings]:
        if self.options.read == "generate":
            return [self._generated(group, range(len(group.rows)), hidden) for group in groups]
        result = []
        for group, readings in zip(groups, self._forced(groups, hidden), strict=True):
            unsure = np.flatnonzero(_lead_mass(readings) < MIN_LEAD).tolist()
            if unsure and self.options.read == "auto":
                gather = ReadingsCollector(readings.scale, len(readings))
                gather.add(readings, [[i] for i in range(len(readings))])
                gather.add(self._generated(group, unsure, hidden), [[i] for i in unsure])
                readings = gather.readings()
            result.append(readings)
        return result

    def _forced(
        self, groups: list[CaptionGroup], hidden: bool, how: str = "forced"
    ) -> list[Readings]:
        """Read the ratings that follow the prompts, and what the model wrote after them."""
        tokenized = groups[0].tokenized
        head = self.runner.head_rows(tokenized).cpu().numpy() if hidden else None
        return [
            readings_from_logp(tokenized, logp, states, head, how)
            for logp, states in self.runner.forward(groups, hidden)
        ]

    def _generated(self, group: CaptionGroup, indices: Sequence[int], hidden: bool) -> Readings:
        """Let the model write until its rating, caption by caption; then read all ratings there."""
        tokenized, vocabulary = group.tokenized, self.runner.vocabulary
        gather = ReadingsCollector(tokenized.scale, len(indices))
        written: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            tokens = self.runner.generate(group, index)
            pieces = [vocabulary.piece(tokens, step) for step in range(len(tokens))]
            try:
                written[index] = written_before_answer(tokens, pieces, tokenized)
            except InputError as error:
                cure = (
                    "" if self.options.read == "generate" else "; read=forced reads it all the same"
                )
                gather.add(Readings.failed(tokenized.scale, [f"{error}{cure}"]), [[place]])
        if written:
            (readings,) = self._forced([group.after(written)], hidden, "generated")
            gather.add(readings, [[i] for i, index in enumerate(indices) if index in written])
        return gather.readings()


def _lead_mass(readings: Readings) -> NDArray[np.float64]:
    """Return the probability (N,) that an answer begins with a stem of the scale, or is one."""
    lead = readings.answer_logp[:, 0] if readings.lead_logp is None else readings.lead_logp
    return np.asarray(np.exp(lead).sum(axis=1))
