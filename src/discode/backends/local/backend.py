"""Local vision-language models: any ``AutoModelForImageTextToText`` as a judge.

One forward reads it all: the stems "0." and "1." are forced, and the probabilities of '0', '1', '.'
and of the digits behind each stem come from the same pass. Captions of a picture share its
computation (:mod:`discode.backends.local.packing`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from discode.backends.local.forward import TOKENS_AT_ONCE, Engine, Work
from discode.backends.local.generate import to_reading
from discode.backends.local.load import Loaded, first_line, load_model
from discode.backends.local.vocabulary import Asked, to_readings
from discode.errors import BackendError, DiscodeError, ImageError, InputError, require
from discode.images import Digests
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings, ReadingsCollector
from discode.scales import UNIT, Scale

LOG = logging.getLogger("discode")
ENOUGH = 0.5
"""Below this probability of a stem's first token, the model is let to write its answer itself."""


class Local:
    """A backend for a model folder or a hub name.

    Args:
        model: Hub name ("llava-hf/llama3-llava-next-8b-hf"), folder, or a model already loaded.
        revision: Branch, tag or commit of the hub's repository.
        dtype: "auto" (bfloat16 on a GPU, else float32), "float32", "bfloat16", "float16".
        device: "cuda", "cuda:1", "cpu", "mps"; the GPU if there is one.
        device_map: accelerate's, "auto" for a model that wants several GPUs.
        quantize: "4bit" or "8bit" (bitsandbytes), "fp8".
        trust_remote_code: Run the code that comes with the model. Off: it may do anything.
        packing: "auto", or "off" for one forward a pair.
        read: "forced" (stems given, one forward), "auto" (the same, but a model that would have
            begun otherwise is let to write its answer), or "generate" (the paper's way).
        captions_at_once: Captions of a chunk; by memory if None.
        images_at_once: Pictures in flight; by memory, eight at most, if None.

    Exact: packed equals plain to rounding, and a check at load makes sure for this very model;
    where it fails, the plain path is taken and a warning says so.
    """

    prompt = FLEUR
    scale = UNIT

    def __init__(
        self,
        model: str | os.PathLike[str] | Loaded,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        device_map: str | None = None,
        quantize: str | None = None,
        trust_remote_code: bool = False,
        packing: str = "auto",
        read: str = "auto",
        captions_at_once: int | None = None,
        images_at_once: int | None = None,
    ) -> None:
        if packing not in ("auto", "off"):
            raise InputError(f"packing={packing!r} is not allowed; give 'auto' or 'off'")
        if read not in ("auto", "forced", "generate"):
            raise InputError(f"read={read!r} is not allowed; give 'auto', 'forced' or 'generate'")
        for name, number in (
            ("captions_at_once", captions_at_once),
            ("images_at_once", images_at_once),
        ):
            if number is not None and number < 1:
                raise InputError(f"{name}={number} is not allowed; give 1 or more")
        loaded = (
            model
            if isinstance(model, Loaded)
            else load_model(
                os.fspath(model), revision, dtype, device, device_map, quantize, trust_remote_code
            )
        )
        self.engine = Engine(loaded, captions_at_once)
        # Whatever changes the numbers is part of who was asked.
        self.identity = Identity(
            loaded.name,
            loaded.revision + (f"+{read}" if read != "auto" else ""),
            f"{quantize}-{loaded.dtype}" if quantize else loaded.dtype,
        )
        self._read_by, self._images_at_once = read, images_at_once
        # A GPU wants several pictures with all their captions; elsewhere a batch takes long enough.
        self.batch_size = 512 if loaded.device.type == "cuda" else 64
        try:
            agrees = self.engine.calibrate(FLEUR, UNIT)
        except require("torch", "hf").OutOfMemoryError as error:
            raise BackendError(
                f"{loaded.name} leaves no memory on {loaded.device} to run it: "
                f"{first_line(error)}; try quantize='4bit', device_map='auto' or a smaller model"
            ) from error
        except DiscodeError:
            raise
        # A model whose first forward fails, in whatever way, is no judge; code that came with one
        # may want another machine or another version of something.
        except Exception as error:
            raise BackendError(
                f"{loaded.name} was loaded but cannot be run: {first_line(error)}"
            ) from error
        self.engine.packed = agrees and packing == "auto"

    @property
    def capabilities(self) -> frozenset[str]:
        """Hidden states, where the logits are the head's product with them and nothing else."""
        return frozenset({"hidden"} if self.engine.linear else ())

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless the tokenizer has one token for every answer."""
        self.engine.vocabulary.asked(prompt, scale, references=prompt.free is None)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Read N pairs; the captions of a picture share its computation."""
        gather = ReadingsCollector(scale, len(pairs))

        def fail(rows: Sequence[int], reason: object) -> None:
            gather.add(Readings.failed(scale, [str(reason)] * len(rows)), [[row] for row in rows])

        groups: dict[tuple[str, bool], list[int]] = {}
        digests = Digests()
        for row, pair in enumerate(pairs):
            try:
                prompt.template(bool(pair.references))
                key = (digests.of(pair.image), bool(pair.references))
            except (ImageError, InputError) as error:
                fail([row], error)
                continue
            groups.setdefault(key, []).append(row)
        # Decoding and words run ahead of the model; Ctrl-C does not wait for what has not begun.
        with ThreadPoolExecutor(4) as threads, ExitStack() as leaving:
            leaving.callback(threads.shutdown, wait=False, cancel_futures=True)
            jobs = []
            for (_, references), rows in groups.items():
                asked = self.engine.vocabulary.asked(prompt, scale, references=references)
                jobs.append((threads.submit(self._prepare, pairs, rows, asked), rows))
            ready: list[Work] = []
            for job, rows in jobs:
                try:
                    work, refused = job.result()
                except (ImageError, BackendError) as error:
                    fail(rows, error)
                    continue
                for row, reason in refused.items():
                    fail([row], reason)
                if not work.rows:
                    continue
                most = self._images_at_once or self.engine.pictures_at_once(work.picture)
                longest = max(len(ids) for each in (*ready, work) for ids in each.suffixes)
                if ready and (
                    len(ready) >= most
                    or (len(ready) + 1) * longest > TOKENS_AT_ONCE  # all are padded to it
                    or ready[0].picture.shape() != work.picture.shape()
                    or ready[0].asked is not work.asked
                ):
                    self._answer(ready, gather, hidden)
                    ready = []
                ready.append(work)
            if ready:
                self._answer(ready, gather, hidden)
        return gather.readings()

    def _prepare(
        self, pairs: Sequence[Pair], rows: Sequence[int], asked: Asked
    ) -> tuple[Work, dict[int, str]]:
        """Return a picture and its captions as the model wants them, and what cannot be asked."""
        work = Work(asked, self.engine.picture(pairs[rows[0]].image, asked), [], [], [])
        refused = {}
        room = self.engine.room(work.picture, asked)
        for row in rows:
            try:
                suffix = asked.suffix(pairs[row].caption, pairs[row].references)
                if len(suffix) > room:
                    raise InputError(
                        f"the caption makes a prompt of {len(suffix) - room} tokens more than the "
                        "model can see"
                    )
            # A tokenizer refuses in its own ways (half a character); it is this caption's affair.
            except Exception as error:
                refused[row] = f"the caption cannot be asked about: {first_line(error)}"
                continue
            work.pairs.append(pairs[row])
            work.rows.append(row)
            work.suffixes.append(suffix)
        return work, refused

    def _answer(self, ready: list[Work], gather: ReadingsCollector, hidden: bool) -> None:
        """Read pictures that share a shape; what fails fails alone."""
        captions_at_once = self.engine.captions_at_once
        reason, short = "", False
        try:
            many = self._read_pictures(ready, hidden)
        # A model's code fails in its own ways; a picture must not take its neighbours along.
        except Exception as error:
            short = isinstance(error, require("torch", "hf").OutOfMemoryError)
            what = "ran out of memory with" if short else "failed on"
            reason = f"the model {what} this picture{' alone' * short}: {first_line(error)[:200]}"
        # From here on nothing holds on to the error, and through it to the memory of what failed.
        if short:  # with one caption at a time: it was the pictures
            self.engine.captions_at_once = captions_at_once
        if reason and len(ready) > 1:
            if short:
                self._images_at_once = len(ready) // 2
                LOG.warning(
                    "discode: out of memory; going on with %d pictures at once",
                    self._images_at_once,
                )
            for one in ready:
                self._answer([one], gather, hidden)
            return
        if reason:
            many = [Readings.failed(ready[0].asked.scale, [reason] * len(ready[0].rows))]
        for work, readings in zip(ready, many, strict=True):
            gather.add(readings, [[row] for row in work.rows])

    def _read_pictures(self, ready: list[Work], hidden: bool) -> list[Readings]:
        asked = ready[0].asked
        head = self.engine.rows(asked).cpu().numpy() if hidden else None
        own = head[asked.answer_columns] if head is not None else None

        def write(work: Work, place: int) -> Readings:
            return to_reading(self.engine.write(work, place), asked, own)

        if self._read_by == "generate":
            return [
                Readings.concat(asked.scale, [write(work, i) for i in range(len(work.rows))])
                for work in ready
            ]
        result = []
        answers = self.engine.forward(ready)
        for work, (logp, states) in zip(ready, answers, strict=True):
            readings = to_readings(asked, logp, states, head)
            gather = ReadingsCollector(asked.scale, len(work.rows))
            gather.add(readings, [[i] for i in range(len(readings))])
            unsure = np.flatnonzero(_mass(readings) < ENOUGH).tolist()
            for i in unsure if self._read_by == "auto" else ():
                written = write(work, i)
                if not written.errors:  # else the forced reading is the best there is
                    gather.add(written, [[i]])
            result.append(gather.readings())
        return result


def _mass(readings: Readings) -> NDArray[np.float64]:
    """Return the probability (N,) that an answer begins as the scale wants it."""
    lead = readings.answer_logp[:, 0] if readings.lead_logp is None else readings.lead_logp
    return np.asarray(np.exp(lead).sum(axis=1))
