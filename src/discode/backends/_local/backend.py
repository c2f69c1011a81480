"""Local vision-language models: any ``AutoModelForImageTextToText`` as a judge.

One forward pass reads everything: the stems "0." and "1." are forced, with and without a space
if a model may begin with one ("ASSISTANT: 0.8"). Captions of an image share its computation.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT, Scale, find_rating
from discode.backends._base import Backend, Blocks
from discode.backends._local.calibrate import calibrate
from discode.backends._local.forward import Runner
from discode.backends._local.load import LocalOptions, OpenedModel, open_model, short_message
from discode.backends._local.prefix import Answers, CaptionGroup
from discode.backends._local.vocabulary import (
    MAX_NEW_TOKENS,
    TokenizedPrompt,
    Vocabulary,
    readings_from_logp,
)
from discode.errors import BackendError, DiscodeError, ImageError, InputError, require
from discode.images import ImageSource, SharedImage, image_digest
from discode.readings import Identity, Readings, ReadingsCollector
from discode.readings._sampled import count_ratings, from_counts

T = TypeVar("T")
LOG = logging.getLogger("discode")
IMAGES_AHEAD = 16
"""Images that are decoded and processed ahead of the model; more if two batches have more."""
FIRST_TOKENS = 2720
"""Tokens of the first batch on a GPU, or two images. So the GPU starts early, and computes while
more images are processed; no other image is processed before, as that would delay both."""
GROWTH = 4
"""How many times as much as the one before it each batch has on a GPU. Every batch is a launch of
the model, which takes as long as a GPU needs for some images."""
WAITING_BATCHES, WAITING_BYTES = 4, 1 << 29
"""Batches of processed images, and their bytes, that may wait for others of their shape. Images of
different shapes cannot share a launch, so photographs of many sizes would run one or two at a
time."""
PREPARING_THREADS = {"cuda": 8, "cpu": 4}
"""Threads that process images and captions, by device."""
DIGESTED = 512
"""Pairs whose images are compared with each other: equal images share their computation."""
MIN_LEAD = 0.5
"""The model generates its answer if the probability that it begins with a stem is below this."""


@dataclass
class _Batch:
    """Images submitted to the model: its ``answers``, or the ``reason`` of the failure."""

    groups: list[CaptionGroup]
    answers: Answers | None = None
    reason: str = ""


class Local(Backend):
    """A backend for a model folder or a hub name.

    Args:
        model: Hub name ("llava-hf/llama3-llava-next-8b-hf"), folder, or an opened model.
        options: See :class:`LocalOptions`.

    Weights are loaded when they are first needed; answers from a store need none. Packed and
    separate passes agree up to rounding. This is checked when a model is loaded; if the check
    fails, pairs run separately and a warning is logged.
    """

    def __init__(self, model: str | os.PathLike[str] | OpenedModel, **options: Any) -> None:
        self.options = LocalOptions(**options)
        if self.options.thinking == "on" and self.options.read == "forced":
            raise InputError("thinking=on reads what the model writes; it cannot use read=forced")
        self.samples = self.options.samples or 0
        if not isinstance(model, OpenedModel):
            model = open_model(os.fspath(model), self.options)
        self._model = model
        self._runner: Runner | None = None
        self._refused: DiscodeError | None = None
        self._batch_images = self.options.batch_images
        # Large batches keep a GPU busy; on a CPU, small ones return results sooner.
        self._on_gpu = model.device.type == "cuda"
        self.batch_size = 4096 if self._on_gpu else 64
        self.identity = self._identity(model)

    @property
    def runner(self) -> Runner:
        """The model with its weights, loaded on first use.

        A failed load, which may take minutes, is not repeated.
        """
        if self._runner is None:
            with self._model.lock:
                if self._refused is not None:
                    raise self._refused
                try:
                    self._runner = self._runner or self._load()
                except DiscodeError as error:
                    self._refused = error
                    raise
        return self._runner

    def _load(self) -> Runner:
        """Load the model and run it once; raise if it cannot run."""
        try:
            runner = Runner(self._model, self.options.batch_captions)
            runner.packed = calibrate(runner, FLEUR, UNIT) and self.options.packing == "auto"
        except require("torch", "hf").OutOfMemoryError as error:
            raise InputError(
                f"{self._model.name} leaves too little memory on {self._model.device} to run: "
                f"{short_message(error)}; try quantize='4bit', device_map='auto' or a smaller model"
            ) from error
        except BackendError as error:  # would only fail the pairs of one batch
            raise InputError(str(error)) from error
        except DiscodeError:
            raise
        # The first forward pass may fail in any way: a model's own code may need another machine
        # or other versions of packages.
        except Exception as error:
            raise InputError(
                f"{self._model.name} was loaded but cannot be run: {short_message(error)}"
            ) from error
        runner.second_decimal = self.options.second_decimal == "auto"
        return runner

    def _identity(self, opened: OpenedModel) -> Identity:
        """Identify the model, with every option that changes the numbers."""
        options = self.options
        parts = [
            opened.revision,
            "space" * opened.vocabulary.may_begin_with_space("a"),
            options.read if options.read != "auto" else "",
            "legacy_spaces=off" * (options.legacy_spaces == "off"),
            "second" * (options.second_decimal == "auto"),
            *self._thinking(opened.vocabulary),
            "sampled" * bool(self.samples),
        ]
        dtype = f"{options.quantize}-{opened.dtype}" if options.quantize else opened.dtype
        return Identity(opened.name, "+".join(filter(None, parts)), dtype)

    def _thinking(self, vocabulary: Vocabulary) -> Iterator[str]:
        if vocabulary.thinking == "on":  # samples without an end of the thoughts count as drawn
            yield f"thinking={self.options.thinking_tokens}" if self.samples else "thinking"
        elif vocabulary.template_options:
            yield "thinking=off"

    def sampling(self, n: int) -> Local:
        """Return this model drawing ``n`` answers per pair instead of reading log-probabilities.

        Draws are independent of all earlier ones, also of those of other processes.
        """
        view = copy.copy(self)
        view._runner, view.samples = self.runner, n
        view.identity = view._identity(self._model)
        return view

    @property
    def capabilities(self) -> frozenset[str]:  # type: ignore[override]  # computed
        """Hidden states, if the logits are simply the head's product with them.

        Loads the model to find out.
        """
        return frozenset({"hidden"} if not self.samples and self.runner.logit_scale else ())

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless every answer is one token."""
        self._model.vocabulary.tokenize_prompt(
            prompt, scale, references=prompt.free is None, sampled=self.samples > 0
        )

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Read N pairs; the captions of an image share its computation.

        A batch's answers are fetched after the next batch has started, so that the device stays
        busy while the caller decodes and stores readings.
        """
        batches: deque[_Batch] = deque()
        _ = self.runner  # load it before threads need it
        for answer in self._batches(pairs, prompt, scale):
            if isinstance(answer, tuple):
                rows, reason = answer
                yield rows, Readings.failed(scale, [reason] * len(rows))
                continue
            batches.append(self._start(answer, hidden))
            if len(batches) > 1:
                yield from self._finish(batches.popleft(), hidden)
        while batches:
            yield from self._finish(batches.popleft(), hidden)

    def _batches(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> Iterator[list[CaptionGroup] | tuple[Sequence[int], str]]:
        """Yield images of one shape to run together, or rows and why they cannot be read.

        A limited number of images waits for others of the same shape; then the commonest shape
        runs. A GPU starts with a few images, to start early.
        """
        waiting: dict[Any, list[CaptionGroup]] = {}
        started = 0
        for rows, group in self._prepared(pairs, prompt, scale):
            if isinstance(group, str):
                yield rows, group
                continue
            kind, most = (group.image.shape(), group.tokenized), self._images_ahead(group)
            if self._on_gpu:
                most = min(most, self._first_images(group) * GROWTH ** min(started, 16))
            if kind in waiting and not self._fit_together([*waiting[kind], group]):
                yield waiting.pop(kind)
                started += 1
            groups = waiting.setdefault(kind, [])
            groups.append(group)
            if len(groups) >= min(most, self._most_images(group)):
                full = kind
            elif sum(map(len, waiting.values())) >= (self._waiting(group) if started else most):
                full = max(waiting, key=lambda each: len(waiting[each]))
            else:
                continue
            yield waiting.pop(full)
            started += 1
        yield from waiting.values()

    def _prepared(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> Iterator[tuple[Sequence[int], CaptionGroup | str]]:
        """Yield the pairs of each image as the model's inputs, or why some cannot be read.

        Threads decode the next images and tokenise their captions while the model runs; Ctrl-C
        cancels those that have not started.
        """
        count = PREPARING_THREADS["cuda" if self._on_gpu else "cpu"]
        with (
            ThreadPoolExecutor(count, initializer=self._limit_threads) as threads,
            ExitStack() as leave,
        ):
            leave.callback(threads.shutdown, wait=False, cancel_futures=True)
            images = self._by_image(pairs, prompt, threads)
            jobs: deque[tuple[list[int], Future[Any] | str]] = deque()
            taken, first, ahead = 0, 2 if self._on_gpu else 0, IMAGES_AHEAD
            while True:
                more = (first - taken if taken < first else ahead) - len(jobs)
                for rows, having in itertools.islice(images, max(0, more)):
                    if isinstance(having, str):
                        jobs.append((rows, having))
                        continue
                    tokenized = self.runner.vocabulary.tokenize_prompt(
                        prompt, scale, references=having, sampled=self.samples > 0
                    )
                    jobs.append((rows, threads.submit(self._prepare, pairs, rows, tokenized)))
                if not jobs:
                    return
                rows, job = jobs.popleft()
                try:
                    group, refused = job.result() if isinstance(job, Future) else (job, {})
                except (ImageError, BackendError) as error:
                    group, refused = str(error), {}
                for row, reason in refused.items():
                    yield [row], reason
                asked = rows if isinstance(group, str) else group.rows
                if asked:
                    yield asked, group
                taken += 1
                if isinstance(group, CaptionGroup):
                    first = first and self._first_images(group)
                    ahead = self._images_ahead(group)

    def _first_images(self, group: CaptionGroup) -> int:
        """How many images like this one the first batch on a GPU has."""
        return max(2, FIRST_TOKENS // int(group.image.ids.shape[1]))

    def _images_ahead(self, group: CaptionGroup) -> int:
        """How many images like this one are processed before they are needed: two batches."""
        return max(IMAGES_AHEAD, 2 * self._most_images(group))

    def _waiting(self, group: CaptionGroup) -> int:
        """How many images like this one may wait for others of their shape."""
        most = self._images_ahead(group)
        if not self._on_gpu:  # a launch takes little of the time
            return most
        size = sum(getattr(value, "nbytes", 0) for value in group.image.inputs.values())
        many = WAITING_BATCHES * self._most_images(group)
        return max(most, min(many, WAITING_BYTES // max(1, size)))

    def _most_images(self, group: CaptionGroup) -> int:
        return self._batch_images or self.runner.images_that_fit(group.image)

    def _limit_threads(self) -> None:
        """Limit each preparing thread to one core if a GPU runs the model: more slows the rest."""
        if self._on_gpu:
            require("torch", "hf").set_num_threads(1)

    def _by_image(
        self, pairs: Sequence[Pair], prompt: Prompt, threads: Executor
    ) -> Iterator[tuple[list[int], bool | str]]:
        """Yield the rows of each image and whether they have references, or why they fail.

        Images are compared by digest, :data:`DIGESTED` pairs at a time; open images only with those
        that begin with the same pixels, because their digests take as long as the GPU's start.
        """
        for start in range(0, len(pairs), DIGESTED):
            some = range(start, min(start + DIGESTED, len(pairs)))
            images = {id(pairs[row].image): pairs[row].image for row in some}
            begins = dict(zip(images, threads.map(_beginning, images.values()), strict=True))
            count = Counter(begins.values())
            alike = {i: images[i] for i, first in begins.items() if not first or count[first] > 1}
            digests = dict(zip(alike, threads.map(_digest, alike.values()), strict=True))
            rows_of: dict[tuple[str, bool], list[int]] = {}
            for row in some:
                image, having = id(pairs[row].image), bool(pairs[row].references)
                digest = digests.get(image, str(image))
                try:
                    prompt.template(having)
                    if isinstance(digest, Exception):
                        raise digest
                except (ImageError, InputError) as error:
                    yield [row], str(error)
                else:
                    rows_of.setdefault((digest, having), []).append(row)
            yield from ((rows, having) for (_, having), rows in rows_of.items())

    def _fit_together(self, groups: Sequence[CaptionGroup]) -> bool:
        """Whether the captions of images of one shape fit into one pass."""
        # All are padded to the longest.
        tokens = len(groups) * max(sum(map(len, group.suffixes)) for group in groups)
        return tokens <= self.runner.max_packed_tokens()

    def _prepare(
        self, pairs: Sequence[Pair], rows: Sequence[int], tokenized: TokenizedPrompt
    ) -> tuple[CaptionGroup, dict[int, str]]:
        """Prepare an image and its captions as the model's inputs; also why rows are excluded."""
        image = self.runner.process_image(pairs[rows[0]].image, tokenized)
        group = CaptionGroup(tokenized, image, [], [], [])
        refused = {}
        most = self.runner.max_suffix(image, tokenized)
        asked = [pairs[row] for row in rows]
        # Tokenizers refuse captions (half a character) with any exception; then try each alone.
        try:
            suffixes: Sequence[list[int] | None] = tokenized.suffixes(asked)
        except Exception:
            suffixes = [None] * len(asked)
        for row, pair, suffix in zip(rows, asked, suffixes, strict=True):
            try:
                suffix = suffix or tokenized.suffixes([pair])[0]
                if len(suffix) > most:
                    raise InputError(
                        f"its prompt exceeds the model's context by {len(suffix) - most} tokens"
                    )
            except Exception as error:
                refused[row] = f"the caption cannot be read: {short_message(error)}"
                continue
            group.pairs.append(pair)
            group.rows.append(row)
            group.suffixes.append(suffix)
        return group, refused

    def _start(self, groups: list[CaptionGroup], hidden: bool) -> _Batch:
        """Submit images of one shape to the model, without waiting for its answers."""
        if self.samples or self.options.read == "generate" or self._model.thinking == "on":
            return _Batch(groups)
        return _Batch(groups, *self._try(groups, lambda: self.runner.start(groups, hidden)))

    def _finish(self, batch: _Batch, hidden: bool) -> Blocks:
        """Yield the readings of a batch; after a failure its images run one by one."""
        groups, answers, reason = batch.groups, batch.answers, batch.reason
        batch.answers = None
        readings = None
        if not reason:
            readings, reason = self._try(groups, lambda: self._readings(groups, answers, hidden))
        if readings is None and len(groups) > 1:
            for group in groups:
                yield from self._finish(self._start([group], hidden), hidden)
            return
        rows, scale = [row for group in groups for row in group.rows], groups[0].tokenized.scale
        if readings is None:
            yield rows, Readings.failed(scale, [reason] * len(rows))
        else:
            yield rows, readings

    def _try(self, groups: list[CaptionGroup], work: Callable[[], T]) -> tuple[T | None, str]:
        """Run the model on some images; returns its result, or the reason of a failure."""
        batch_captions = self.runner.batch_captions
        try:
            return work(), ""
        # A model's code may raise anything; only the image that caused it should fail.
        except Exception as error:
            short = isinstance(error, require("torch", "hf").OutOfMemoryError)
            what = "ran out of memory with" if short else "failed on"
            reason = f"the model {what} this image{' alone' * short}: {short_message(error)[:200]}"
        # The error is out of scope here, and no longer keeps the failed pass in memory.
        if short:  # even with one caption at a time, so the images need too much
            self.runner.batch_captions, self.runner.one_pass = batch_captions, False
            if len(groups) > 1:
                self._batch_images = len(groups) // 2
                LOG.warning(
                    "discode: out of memory; continuing with %d images at once", self._batch_images
                )
        return None, reason

    def _readings(
        self, groups: list[CaptionGroup], answers: Answers | None, hidden: bool
    ) -> Readings:
        scale = groups[0].tokenized.scale
        if self.samples:
            return Readings.concat(scale, [self._sampled(group) for group in groups])
        if answers is None:
            every = [self._generated(group, range(len(group.rows)), hidden) for group in groups]
            return Readings.concat(scale, every)
        readings = self._forced(groups, answers, hidden)
        unsure = _lead_mass(readings) < MIN_LEAD
        if self.options.read != "auto" or not unsure.any():
            return readings
        gather, start = ReadingsCollector(scale, len(readings)), 0
        gather.add(readings, range(len(readings)))
        for group in groups:
            some = np.flatnonzero(unsure[start : start + len(group.rows)])
            if len(some):
                again = self._generated(group, some.tolist(), hidden)
                gather.add(again, (start + some).tolist())
            start += len(group.rows)
        return gather.readings()

    def _forced(
        self, groups: list[CaptionGroup], answers: Answers, hidden: bool, how: str = "forced"
    ) -> Readings:
        tokenized = groups[0].tokenized
        head = self.runner.head_rows(tokenized).cpu().numpy() if hidden else None
        logp, states = map(np.concatenate, zip(*answers(), strict=True))
        return readings_from_logp(tokenized, logp, states, head, how)

    def _generated(self, group: CaptionGroup, indices: Sequence[int], hidden: bool) -> Readings:
        """Let the model write up to its rating, caption by caption; then read all ratings there.

        If it thinks, the rating is the one after its thoughts.
        """
        tokenized, vocabulary = group.tokenized, self.runner.vocabulary
        gather = ReadingsCollector(tokenized.scale, len(indices))
        written: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            tokens = self.runner.generate(group, index, self._most_tokens)
            start = vocabulary.answer_start(tokens, self._most_tokens)
            answer = tokens[start:]
            pieces = [vocabulary.piece(answer, step) for step in range(len(answer))]
            try:
                if start is None:
                    raise InputError(self._why_unended())
                written[index] = tokens[:start] + tokenized.before_rating(answer, pieces)
            except InputError as error:
                why = str(error) + "; read=forced can read it" * (vocabulary.thinking == "off")
                gather.add(Readings.failed(tokenized.scale, [why]), [place])
        if written:
            groups = [group.after(written)]
            answers = self.runner.start(groups, hidden)
            readings = self._forced(groups, answers, hidden, "generated")
            gather.add(readings, [i for i, index in enumerate(indices) if index in written])
        return gather.readings()

    @property
    def _most_tokens(self) -> int:
        thoughts = self.options.thinking_tokens if self._model.thinking == "on" else 0
        return MAX_NEW_TOKENS + thoughts

    def _why_unended(self) -> str:
        if self._model.thinking == "off":
            return f"the model thinks, {self._model.vocabulary.tried}"
        tokens = self.options.thinking_tokens
        return f"its thoughts did not end within {tokens} tokens; set a larger thinking_tokens"

    def _sampled(self, group: CaptionGroup) -> Readings:
        vocabulary, scale = self.runner.vocabulary, group.tokenized.scale
        counts = []
        for index in range(len(group.rows)):
            ratings = []
            for tokens in self.runner.sample(group, index, self.samples, self._most_tokens):
                start = vocabulary.answer_start(tokens, self._most_tokens)
                text = vocabulary.tokenizer.decode(tokens[start:], skip_special_tokens=True)
                ratings.append(None if start is None else find_rating(text, scale))
            counts.append(count_ratings(scale, ratings))
        return from_counts(scale, np.stack(counts), np.full(len(counts), self.samples))


def _beginning(image: ImageSource) -> tuple[object, ...]:
    """The first rows of an open image, with its mode and size; nothing of other images."""
    source = image.source if isinstance(image, SharedImage) else image
    if not isinstance(source, Image.Image):
        return ()
    try:
        return source.mode, source.size, source.crop((0, 0, source.width, 4)).tobytes()
    except Exception:  # its digest names the reason
        return ()


def _digest(image: ImageSource) -> str | ImageError:
    try:
        return image_digest(image)
    except ImageError as error:
        return error


def _lead_mass(readings: Readings) -> NDArray[np.float64]:
    """The probability (N,) that an answer begins with a stem, or is on a scale without stems."""
    lead = readings.answer_logp[:, 0] if readings.lead_logp is None else readings.lead_logp
    return np.asarray(np.exp(lead).sum(axis=1))
