"""Local vision-language models: any ``AutoModelForImageTextToText`` as a judge.

One forward reads it all: the stems "0." and "1." are forced, and the probabilities of '0', '1', '.'
and of the digits behind each stem come from the same pass. Captions of a picture share its
computation (:mod:`discode.backends.packing`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from discode.backends.engine import Engine, Picture
from discode.backends.generating import to_reading
from discode.backends.loading import Loaded, load_model
from discode.backends.tokens import Asked, to_readings
from discode.errors import BackendError, DiscodeError, ImageError, InputError
from discode.pairs import Pair, image_digest
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings
from discode.scales import UNIT, Scale

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
        images_at_once: Pictures in flight.

    Exact: packed equals plain to rounding, and a check at load makes sure for this very model;
    where it fails, the plain path is taken and a warning says so.
    """

    capabilities = frozenset({"hidden"})
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
        images_at_once: int = 4,
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
        self.identity = Identity(loaded.name, loaded.revision, quantize or loaded.dtype)
        self._read_by, self._images_at_once = read, images_at_once
        try:
            agrees = self.engine.calibrate(FLEUR, UNIT)
        except DiscodeError:
            raise
        # Code that came with a model may want another machine or another version of something.
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise BackendError(f"{loaded.name} was loaded but cannot be run: {reason}") from error
        self.engine.packed = agrees and packing == "auto"

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise unless the tokenizer has one token for every answer."""
        self.engine.vocabulary.asked(prompt, scale, references=prompt.free is None)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Read N pairs; the captions of a picture share its computation."""
        rows: list[Readings | None] = [None] * len(pairs)
        groups: dict[tuple[str, bool], list[int]] = {}
        for number, pair in enumerate(pairs):
            try:
                prompt.template(bool(pair.references))
                groups.setdefault((image_digest(pair.image), bool(pair.references)), []).append(
                    number
                )
            except (ImageError, InputError) as error:
                rows[number] = Readings.failed(scale, [str(error)])
        work = [
            (numbers, self.engine.vocabulary.asked(prompt, scale, references=references))
            for (_, references), numbers in groups.items()
        ]
        with ThreadPoolExecutor(4) as threads:  # decoding runs ahead of the model
            jobs = [
                threads.submit(self.engine.picture, pairs[numbers[0]].image, asked)
                for numbers, asked in work
            ]
            ready: list[tuple[Picture, list[int], Asked]] = []
            for job, (numbers, asked) in zip(jobs, work, strict=True):
                try:
                    picture = job.result()
                except (ImageError, BackendError) as error:
                    for number in numbers:
                        rows[number] = Readings.failed(scale, [str(error)])
                    continue
                if ready and (
                    len(ready) == self._images_at_once
                    or ready[0][0].shape() != picture.shape()
                    or ready[0][2] is not asked
                ):
                    self._answer(ready, pairs, rows, hidden)
                    ready = []
                ready.append((picture, numbers, asked))
            if ready:
                self._answer(ready, pairs, rows, hidden)
        return Readings.concat(scale, [row for row in rows if row is not None])

    def _answer(
        self,
        ready: list[tuple[Picture, list[int], Asked]],
        pairs: Sequence[Pair],
        rows: list[Readings | None],
        hidden: bool,
    ) -> None:
        """Fill the rows of pictures that share a shape; what fails fails alone."""
        asked = ready[0][2]
        try:
            many = self._read_pictures(ready, pairs, hidden)
        # A model's code fails in its own ways; a picture must not take its neighbours along.
        except Exception as error:
            if len(ready) > 1:
                for one in ready:
                    self._answer([one], pairs, rows, hidden)
                return
            reason = f"the model failed on this picture: {str(error).splitlines()[0][:200]}"
            many = [
                Readings.failed(asked.scale, [reason] * len(numbers)) for _, numbers, _ in ready
            ]
        for (_, numbers, _), readings in zip(ready, many, strict=True):
            for place, number in enumerate(numbers):
                rows[number] = readings.take([place])

    def _read_pictures(
        self, ready: list[tuple[Picture, list[int], Asked]], pairs: Sequence[Pair], hidden: bool
    ) -> list[Readings]:
        asked = ready[0][2]
        head = self.engine.rows(asked).cpu().numpy() if hidden else None
        own = head[asked.answer_columns] if head is not None else None
        several = [[pairs[n] for n in numbers] for _, numbers, _ in ready]
        if self._read_by == "generate":
            return [
                Readings.concat(
                    asked.scale,
                    [
                        to_reading(self.engine.write(picture, pair, asked), asked, own)
                        for pair in some
                    ],
                )
                for (picture, _, _), some in zip(ready, several, strict=True)
            ]
        result = []
        answers = self.engine.forward([picture for picture, _, _ in ready], several, asked)
        for (picture, _, _), some, (logp, states) in zip(ready, several, answers, strict=True):
            readings = to_readings(asked, logp, states, head)
            parts = [readings.take([i]) for i in range(len(some))]
            for i in np.flatnonzero(_mass(readings) < ENOUGH) if self._read_by == "auto" else ():
                written = to_reading(self.engine.write(picture, some[i], asked), asked, own)
                if not written.errors:  # else the forced reading is the best there is
                    parts[i] = written
            result.append(Readings.concat(asked.scale, parts))
        return result


def _mass(readings: Readings) -> NDArray[np.float64]:
    """Return the probability (N,) that an answer begins as the scale wants it."""
    lead = readings.answer_logp[:, 0] if readings.lead_logp is None else readings.lead_logp
    return np.asarray(np.exp(lead).sum(axis=1))
