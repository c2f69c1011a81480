"""Judge = backend + prompt + scale + decoder; and decode(), for readings you already have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discode.backends import Backend, Choosy, Flowing, Runtime, open_backend
from discode.backends.embedded import introduce
from discode.decoders import Decoder, get_decoder
from discode.decoders.bounds import truncation_bound
from discode.errors import BackendError, ImageError, InputError
from discode.images import Digests, ImageSource, picture_key
from discode.pairs import Pair, make_pairs
from discode.prompts import FLEUR, Prompt, get_prompt, needs_neutralising
from discode.readings import Readings, ReadingsCollector
from discode.readings.store import PairKey, ReadingStore, RunKey
from discode.scales import UNIT, Scale, get_scale
from discode.scores import Scores
from discode.signature import GIVEN, signature

Progress = Callable[[int], None]
"""Called with the number of pairs just done."""


@dataclass(frozen=True)
class Judge:
    """Scores image-caption pairs with a model.

    Readings already in ``store`` are not asked for again; new ones are written to it batch by
    batch, so that a run that was stopped goes on where it was.
    """

    backend: Backend
    decoder: Decoder
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    store: ReadingStore | None = None
    batch_size: int = 64

    needs = frozenset({"image"})

    def __post_init__(self) -> None:
        if isinstance(self.backend, Choosy):
            self.backend.check(self.prompt, self.scale)
        lacking = self.decoder.requires - self.backend.capabilities
        if lacking:
            raise InputError(
                f"decoder {self.decoder.name!r} needs {', '.join(sorted(lacking))} of the model, "
                f"which {self.backend.identity.model!r} does not give; use solver 'exact'"
            )
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size} is not allowed; give 1 or more")

    @property
    def signature(self) -> str:
        """How this judge's numbers are made; scores add whether there were references."""
        return self._signature("as given")

    def _signature(self, references: str) -> str:
        identity = self.backend.identity
        return signature(identity, self.scale, self.decoder, self.prompt, references=references)

    def score(
        self,
        images: ImageSource | Sequence[ImageSource],
        captions: str | Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> Scores:
        """Score one image with one or many captions, or as many images as captions.

        >>> from discode.images import demo_path
        >>> scores = load().score(demo_path() / "cat.jpg", ["a cat", "a man rides a bike"])
        >>> bool(scores.value[0] > scores.value[1])
        True
        """
        return self.score_pairs(make_pairs(images, captions, references))

    def score_pairs(self, pairs: Sequence[Pair], progress: Progress | None = None) -> Scores:
        """Score N pairs; the result is in their order, failed ones NaN with a reason."""
        return self.decode(pairs, self.read(pairs, progress))

    def decode(self, pairs: Sequence[Pair], readings: Readings) -> Scores:
        """Decode readings of ``pairs`` and mark captions that carried control tokens."""
        defused = np.array(
            [any(map(needs_neutralising, (p.caption, *p.references))) for p in pairs],
            dtype=bool,
        )
        with_references = sum(bool(pair.references) for pair in pairs)
        share = {len(pairs): "all", 0: "none"}.get(with_references, "some")
        return Scores.build(
            self.decoder.decode(readings),
            readings,
            self._signature(share),
            {"defused": defused},
            truncation_bound(self.decoder, readings),
        )

    def read(self, pairs: Sequence[Pair], progress: Progress | None = None) -> Readings:
        """Read N pairs: from the store where it has them, from the model where not.

        Captions of a picture go into a batch together, wherever they stand: they share its cost.
        """
        groups: dict[Any, list[int]] = {}
        for number, pair in enumerate(pairs):
            groups.setdefault(picture_key(pair.image), []).append(number)
        order = [number for group in groups.values() for number in group]
        parts = []
        for start in range(0, len(pairs), self.batch_size):
            batch = [pairs[number] for number in order[start : start + self.batch_size]]
            parts.append(self._read_batch(batch))
            if progress:
                progress(len(batch))
        return Readings.concat(self.scale, parts).take(np.argsort(order))

    def _read_batch(self, pairs: Sequence[Pair]) -> Readings:
        hidden = "hidden" in self.decoder.requires
        gather = ReadingsCollector(self.scale, len(pairs))
        # One ask with references, one without: their prompts differ. A pair that stands twice in
        # the batch is asked once.
        groups: dict[str, dict[PairKey, list[int]]] = {}
        unkept: list[int] = []
        digests = Digests()
        for number, pair in enumerate(pairs):
            try:
                template = self.prompt.template(bool(pair.references))
                if self.store is None:
                    unkept.append(number)
                    continue
                item = PairKey(digests.of(pair.image), pair.caption, pair.references)
            except (ImageError, InputError) as error:
                gather.add(Readings.failed(self.scale, [str(error)]), [[number]])
                continue
            groups.setdefault(template, {}).setdefault(item, []).append(number)
        if unkept:
            gather.add(self._ask([pairs[i] for i in unkept]), [[i] for i in unkept])
        for template, members in groups.items():
            assert self.store is not None
            ask = RunKey(self.backend.identity, template, self.scale)
            items, owners = list(members), list(members.values())
            kept, here = self.store.get(ask, items, hidden=hidden)
            gather.add(kept, [owners[i] for i in here])
            missing = sorted(set(range(len(items))) - set(here))
            if missing:
                for rows, new in self._ask_in_blocks([pairs[owners[i][0]] for i in missing]):
                    found = [missing[row] for row in rows]
                    self.store.put(ask, [items[i] for i in found], new)
                    gather.add(new, [owners[i] for i in found])
        return gather.readings()

    def _ask_in_blocks(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Readings]]:
        """Yield readings as they come, where the model is slow or dear enough to tell."""
        if isinstance(self.backend, Flowing):
            yield from self.backend.blocks(pairs, self.prompt, self.scale)
        else:
            yield list(range(len(pairs))), self._ask(pairs)

    def _ask(self, pairs: Sequence[Pair]) -> Readings:
        try:
            readings = self.backend.read(
                pairs, self.prompt, self.scale, hidden="hidden" in self.decoder.requires
            )
        except BackendError as error:
            return Readings.failed(self.scale, [str(error)] * len(pairs))
        if len(readings) != len(pairs):
            raise BackendError(
                f"{self.backend.identity.model} returned {len(readings)} readings for "
                f"{len(pairs)} pairs"
            )
        return readings


def load(
    model: str | os.PathLike[str] | Backend | None = None,
    *,
    method: str | Decoder = "discode",
    prompt: str | os.PathLike[str] | Prompt | None = None,
    scale: str | Scale | None = None,
    store: str | os.PathLike[str] | ReadingStore | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    batch_captions: int | None = None,
    trust_remote_code: bool | None = None,
    quantize: str | None = None,
    device_map: str | None = None,
    base_url: str | None = None,
    key_variable: str | None = None,
    image_size: int | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    timeout: float | None = None,
    max_requests: int | None = None,
    max_cost: float | None = None,
    prices: str | None = None,
) -> Judge:
    """Return a judge; prompt and scale are the model's own where they are not given.

    Args:
        model: "embedded", the default, which ships with the package and, chosen by default,
            introduces itself in one line on standard error; "embedded:FILE.onnx";
            a hub name or a folder of a local vision-language model (``discode models`` lists
            some); "openai:NAME" or "endpoint:NAME" for a model behind an address
            (docs/endpoints.md); "recorded:FILE"; or a :class:`~discode.backends.Backend`.
        method: A row of ``discode methods``, or a decoder.
        prompt: A prompt's name, a text file of your own, or a prompt.
        scale: "unit", "ten", "five", "letters", or a range like "1-7".
        store: A file that keeps what the model said; the next run asks only for the rest.
        batch_size: Pairs a batch; 64, or what the model advises, if None.
        threads: Cores for the embedded model; all of them if None.
        device: "cuda", "cuda:1", "cpu" or "mps", for a local model, as are the following.
        dtype: "bfloat16" (on a GPU the default), "float16" or "float32".
        revision: Branch, tag or commit of the hub.
        batch_captions: Captions of a picture that run at once; by memory if None.
        trust_remote_code: Whether to run code that comes with a model.
        quantize: "4bit", "8bit" or "fp8", for a model that is too large otherwise.
        device_map: "auto" for a model that wants several GPUs.
        base_url: Where "endpoint:NAME" is: "http://localhost:8000/v1".
        key_variable: The environment variable with the key, for a served model, as are the
            following; OPENAI_API_KEY if None.
        image_size: Pixels that longer sides of pictures are shrunk to.
        concurrency: Requests at a time, at most.
        rate: Requests a second, at most.
        timeout: Seconds to wait for an answer.
        max_requests: Requests in all; what is not asked is NaN.
        max_cost: What may be spent, by ``prices``; what is not asked is NaN.
        prices: "READ,WRITTEN", the price of a million tokens.

    >>> load("embedded", method="smoothing", threads=2).signature.split("|")[1]
    'model:discode-embedded'
    """
    if store is not None and not isinstance(store, ReadingStore):
        store = ReadingStore(store)
    runtime = Runtime(
        threads, device, dtype, revision, batch_captions, trust_remote_code, quantize, device_map,
        base_url, key_variable, image_size, concurrency, rate, timeout, max_requests, max_cost,
        prices,
    )  # fmt: skip
    backend = open_backend("embedded" if model is None else model, runtime)
    if prompt is not None and not isinstance(prompt, Prompt):
        prompt = get_prompt(str(prompt))
    judge = Judge(
        backend,
        get_decoder(method),
        prompt or backend.prompt,
        backend.scale if scale is None else get_scale(scale),
        store,
        getattr(backend, "batch_size", 64) if batch_size is None else batch_size,
    )
    if model is None:
        introduce(backend.identity)
    return judge


def decode(
    log_probs: Any,
    method: str | Decoder = "discode",
    scale: str | Scale = "ten",
    *,
    missing: str = "nan",
    **options: Any,
) -> Scores:
    """Turn log-probabilities of the answers into scores.

    Args:
        log_probs: (K,) or (N, K) natural log-probabilities over the scale's answers; or
            mappings of tokens to log-probabilities; or :class:`Readings`, whose own scale
            counts then.
        method: A row of ``discode methods``, e.g. "discode" or "paper".
        scale: "ten", "five", "letters", "unit" (digits behind "0."), or a range like "1-7".
        missing: What becomes of answers that a mapping lacks: "nan" or "spread".
        options: The method's options, e.g. ``sigma2=0.05``.

    >>> import numpy as np
    >>> p = np.array([0.30, 0.02, 0.01, 0.01, 0.01, 0.01, 0.04, 0.40, 0.15, 0.05])
    >>> round(float(decode(np.log(p))), 2), round(float(decode(np.log(p), "smoothing")), 2)
    (7.15, 4.85)
    >>> tokens = {"5": -0.1, "4": -2.5, "3": -5.0, "2": -8.0, "1": -9.0}
    >>> round(float(decode(tokens, scale="five")), 2)
    4.95
    """
    readings = (
        log_probs
        if isinstance(log_probs, Readings)
        else Readings.of(log_probs, get_scale(scale), missing=missing)
    )
    decoder = get_decoder(method, **options)
    made = signature(GIVEN, readings.scale, decoder, missing=missing)
    bound = truncation_bound(decoder, readings)
    return Scores.build(decoder.decode(readings), readings, made, bound=bound)
