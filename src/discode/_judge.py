"""Judge = backend + prompt + scale + decoder; and decode(), for readings you already have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from discode._pairs import (
    NO_REFERENCES,
    Pair,
    PairInput,
    as_pairs,
    batches_by_image,
    pair_up,
    references_among,
    share_images,
)
from discode._plugins import exited
from discode._preferences import (
    PreferenceScores,
    check_comparisons,
    in_both_orders,
    note_by_scores,
    one_by_one,
    other_captions,
)
from discode._prompts import FLEUR, PREFER, Prompt, choose_prompt, get_prompt, needs_neutralising
from discode._rows import RowOptions, RowScorer
from discode._scales import SCALES, UNIT, Scale, get_scale
from discode._scores import Progress, Scores
from discode._sentences import WAYS, not_a_way, sentence_pairs
from discode._signature import GIVEN, Signature, SignedDecoder, fields_table, sign
from discode.backends import Backend, Blocks, open_backend
from discode.backends._embedded import introduce
from discode.backends._recorded import Recorded
from discode.decoders import Decoder, get_decoder
from discode.decoders._simple import Smoothing
from discode.errors import BackendError, BadDataError, ImageError, InputError, shortened
from discode.explain._effects import THRESHOLD, Explanation, explain_scores, pairs_to_explain
from discode.images import ImageInput, image_digest
from discode.options import NON_NEGATIVE
from discode.readings import Origin, Readings, ReadingsCollector, SentenceReadings
from discode.readings._openai import readings_from_json
from discode.readings._sampled import draws_of, merge_draws
from discode.readings._store import PairKey, ReadingStore, RunKey

if TYPE_CHECKING:
    from typing_extensions import Unpack


LOG = logging.getLogger("discode")
_OwnedBlock = tuple[Sequence[Sequence[int]], Readings]
"""Readings, and the rows of each."""


@dataclass(frozen=True)
class Judge:
    """Scores image-caption pairs with a model.

    Readings already in ``store`` are not asked for again; new ones are written to it batch by
    batch, so that a stopped run resumes. A model that takes no references
    is asked without them: a notice is logged once, and the signature has ``references:ignored``.

    A caption is judged ``by`` its sentences, whose mean score it gets, always ("sentence"), never
    ("caption"), or where the model would not read all of it ("auto").

    ``references`` are shown to the model where a pair has them ("as given"), "never", or "always":
    a pair without references then fails.
    """

    backend: Backend
    decoder: Decoder
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    store: ReadingStore | None = None
    batch_size: int = 64
    by: str = "auto"
    references: str = "as given"
    needs: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.backend.check(self.prompt, self.scale)
        # A local model has to be loaded to know its capabilities, which few decoders need.
        needed = self.decoder.requires
        if needed and (lacking := needed - self.backend.capabilities):
            raise InputError(
                f"decoder {self.decoder.name!r} needs {', '.join(sorted(lacking))} from the model, "
                f"which {self.backend.identity.model!r} does not provide; use solver 'exact'"
            )
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size} is not allowed; give 1 or more")
        if self.by not in WAYS:
            raise not_a_way(self.by)
        if self.references not in ("as given", "never", "always"):
            raise InputError(
                f"references={shortened(self.references)} is not allowed; give as given, never or "
                "always"
            )
        needs = {"image", "references"} if self.references == "always" else {"image"}
        object.__setattr__(self, "needs", frozenset(needs))

    @cached_property
    def signature(self) -> Signature:
        """How this judge's numbers are made; scores say whether their pairs had references."""
        return sign(
            self.backend.identity, self.scale, self.decoder, self.prompt, references="as given",
            by=self.by, samples=self.samples,
        )  # fmt: skip

    @cached_property
    def samples(self) -> int:
        """How many answers are drawn per pair, at least; 0 if log-probabilities are read."""
        return int(getattr(self.backend, "samples", 0))

    def __repr__(self) -> str:
        parts = (self.decoder.name, self.prompt.name, self.scale.name)
        return f"Judge({shortened(self.backend)}, {', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the judge's parts for a notebook, without asking a server for its identity."""
        kept = "none" if self.store is None else self.store.path
        return fields_table(
            [("judge", shortened(self.backend)), ("decoder", SignedDecoder.of(self.decoder)),
             ("prompt", self.prompt.name), ("scale", self.scale.name), ("by", self.by),
             ("store", kept)]
        )  # fmt: skip

    def by_caption(self) -> Judge:
        """Return this judge of captions as a whole, whose words are explained."""
        return self if self.by == "caption" else replace(self, by="caption")

    def with_method(self, method: str | Decoder) -> Judge:
        """Return this judge with another decoder."""
        decoder = method if isinstance(method, Decoder) else get_decoder(method)
        return self if decoder is self.decoder else replace(self, decoder=decoder)

    def with_store(self, path: str | os.PathLike[str]) -> Judge:
        """Return this judge with a store at ``path``, unless it has one or replays a recording."""
        if self.store is not None or isinstance(self.backend, Recorded):
            return self
        return replace(self, store=ReadingStore(path))

    def score(
        self,
        images: ImageInput | Sequence[ImageInput],
        captions: str | Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> Scores:
        """Score one image with one or many captions, or as many images as captions.

        :func:`~discode.make_pairs` lists the types of images.

        >>> from discode.images import demo_path
        >>> scores = load().score(demo_path() / "cat.jpg", ["a cat", "a man rides a bike"])
        >>> bool(scores.value[0] > scores.value[1])
        True
        """
        scores = self.score_pairs(pair_up(images, captions, references))
        if np.isnan(scores.value).all():  # printed scores do not show the reason
            LOG.warning("discode: no pair could be judged: %s", scores.errors[0])
        return scores

    def prefer(
        self,
        images: ImageInput | Sequence[ImageInput],
        first: str | Sequence[str],
        second: str | Sequence[str],
    ) -> PreferenceScores:
        """Compare each ``first`` caption with the ``second`` one of its image.

        The model chooses between A and B; the probability of each is read, in both orders, and
        the mean is the probability that the first caption is better. A model that takes one
        caption at a time, such as the embedded one, compares scores: 1, 0, or ½ where they are
        equal.

        >>> from discode.images import demo_path
        >>> float(load("embedded").prefer(demo_path() / "cat.jpg", "a cat", "a man rides a bike"))
        1.0
        """
        return self.prefer_pairs(pair_up(images, first, other_captions(first, second)))

    def prefer_pairs(
        self, pairs: Sequence[PairInput], *, progress: Progress | None = None
    ) -> PreferenceScores:
        """Compare N pairs of captions; failed ones are NaN with a reason.

        Each is an image, a caption, and as its only reference the other caption.
        """
        pairs = as_pairs(pairs)
        check_comparisons(pairs)
        progress = progress and _in_proportion(progress, len(pairs), 2 * len(pairs))
        if not self.backend.takes_references:
            note_by_scores(self.backend.identity.model)
            return PreferenceScores.of_scores(
                self.score_pairs(one_by_one(pairs), progress=progress)
            )
        scores = self.comparing().score_pairs(in_both_orders(pairs), progress=progress)
        return PreferenceScores.of_orders(scores)

    def comparing(self) -> Judge:
        """Return this judge with the question about two captions, its own on scale ``prefer``."""
        return replace(
            self, decoder=Smoothing(), by="caption", references="as given",
            prompt=self.prompt if self.scale == SCALES["prefer"] else PREFER,
            scale=SCALES["prefer"],
        )  # fmt: skip

    def explain(
        self,
        images: ImageInput | Sequence[ImageInput],
        captions: str | Sequence[str],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        threshold: float = THRESHOLD,
    ) -> list[Explanation]:
        """Find the wrong words of English captions by what each adds to its caption's score.

        Each word is replaced by a neutral one (something, someone) or removed, at the cost of a
        reading. It is marked if it adds less than a correct word of its kind by more than
        ``threshold``, a share of the caption's score.

        >>> from discode.images import demo_path
        >>> (explanation,) = load().explain(demo_path() / "cat.jpg", "a cat on a snowboard")
        >>> str(explanation)
        'a cat on a [snowboard -0.38]'
        """
        return self.explain_pairs(pair_up(images, captions, references), threshold)

    def explain_pairs(
        self,
        pairs: Sequence[PairInput],
        threshold: float = THRESHOLD,
        progress: Progress | None = None,
    ) -> list[Explanation]:
        """Explain N pairs, as :meth:`explain` does; progress counts the readings of all words."""
        share = NON_NEGATIVE.convert(threshold)
        if share is None:
            raise InputError(
                f"threshold={shortened(threshold)} is not allowed; give a share, as {THRESHOLD}"
            )
        pairs = as_pairs(pairs)
        scores = self.by_caption().score_pairs(pairs_to_explain(pairs), progress=progress)
        return explain_scores(pairs, scores, self.scale, share)

    def score_pairs(
        self,
        pairs: Sequence[PairInput],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs; the result is in their order, failed ones NaN with a reason.

        A pair is a :class:`~discode.Pair`, a tuple (image, caption) or (image, caption,
        references), or a dictionary with these names. A judge ignores ``repeats``.
        """
        return self.decode_all(as_pairs(pairs), {"": self.decoder}, progress)[""]

    def decode_all(
        self,
        pairs: Sequence[Pair],
        decoders: Mapping[str, Decoder],
        progress: Progress | None = None,
    ) -> dict[str, Scores]:
        """Score N pairs by each of several decoders; the model reads them once.

        >>> from discode.images import demo_path
        >>> decoders = {name: get_decoder(name) for name in ("raw", "discode")}
        >>> pairs = [Pair(demo_path() / "cat.jpg", "a cat")]
        >>> scores = load("embedded").decode_all(pairs, decoders)
        >>> scores["raw"].value.tolist(), scores["discode"].signature.decoder.name
        ([0.8], 'discode')
        """
        judges = {name: self.with_method(each) for name, each in decoders.items()}
        pairs = self._with_references(pairs)
        hidden = any("hidden" in each.requires for each in decoders.values())
        readings = self._read(pairs, progress, hidden)
        references = None if readings.origin is None else readings.origin.references
        return {name: judge._decode(pairs, readings, references) for name, judge in judges.items()}

    def _with_references(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        if self.references == "as given":
            return pairs
        if self.references == "never":
            return [replace(pair, references=()) if pair.references else pair for pair in pairs]
        if not self.backend.takes_references:  # its scores would be those of another metric
            why = f"{self.backend.identity.model} takes no references"
            return [replace(pair, problem=pair.problem or why) for pair in pairs]
        return [
            pair if pair.references else replace(pair, problem=pair.problem or NO_REFERENCES)
            for pair in pairs
        ]

    def decode(
        self, pairs: Sequence[PairInput], readings: Readings, decoder: str | Decoder | None = None
    ) -> Scores:
        """Decode readings of ``pairs``, by another decoder than the judge's own if one is given.

        Captions that carried control tokens are flagged "defused".
        """
        judge = self if decoder is None else self.with_method(decoder)
        pairs = self._with_references(as_pairs(pairs))
        references = references_among(pairs, taken=self.backend.takes_references)
        return judge._decode(pairs, readings, references)

    def _decode(self, pairs: Sequence[Pair], readings: Readings, references: str | None) -> Scores:
        signature = self.signature.with_fields(references=references)
        taken = self.backend.takes_references
        defused = [needs_neutralising(p.caption, *(p.references if taken else ())) for p in pairs]
        flags = {"defused": np.array(defused, bool)}
        return Scores.build(self.decoder, readings, signature, flags, pairs)

    def read(
        self,
        pairs: Sequence[PairInput],
        progress: Progress | None = None,
        *,
        hidden: bool | None = None,
    ) -> Readings:
        """Read N pairs: from the store where it has them, from the model where not.

        Captions of an image are batched together, wherever they are: they share its cost.
        So do the sentences of captions that are judged by them.
        Hidden states are read if ``hidden``; by default, if the judge's own decoder needs them.
        """
        if hidden is None:
            hidden = "hidden" in self.decoder.requires
        return self._read(self._with_references(as_pairs(pairs)), progress, hidden)

    def _read(self, pairs: Sequence[Pair], progress: Progress | None, hidden: bool) -> Readings:
        if self.by == "sentence":
            return self._read_sentences(pairs, progress, hidden)
        whole = self._read_each(pairs, progress, hidden)
        cut = [] if self.by == "caption" else np.flatnonzero(whole.how == "cut").tolist()
        if not (parts := _sentences_of(pairs, cut)):
            return whole
        asked = [pair for part in parts.values() for pair in part]
        return _with_sentences(whole, parts, self._read_each(asked, None, hidden))

    def _read_sentences(
        self, pairs: Sequence[Pair], progress: Progress | None, hidden: bool
    ) -> Readings:
        """Return readings of captions of one sentence, and of the sentences of the others."""
        parts = _sentences_of(pairs, range(len(pairs)))
        rows = [row for row in range(len(pairs)) if row not in parts]
        asked = [pairs[row] for row in rows]
        asked += [pair for part in parts.values() for pair in part]
        progress = progress and _in_proportion(progress, len(pairs), len(asked))
        read = self._read_each(asked, progress, hidden)
        collector = ReadingsCollector(self.scale, len(pairs), read.origin)
        collector.add(read.take(range(len(rows))), rows)
        unread = Readings.failed(self.scale, [""] * len(parts))
        collector.add(replace(unread, errors={}), [*parts])
        return _with_sentences(collector.readings(), parts, read.take(range(len(rows), len(asked))))

    def _read_each(
        self, pairs: Sequence[Pair], progress: Progress | None, hidden: bool
    ) -> Readings:
        taken = self.backend.takes_references
        references = references_among(pairs, taken=taken)
        if references == "ignored" and self.references != "always":
            note_ignored_references(self.backend.identity.model)
        blocks: list[_OwnedBlock] = []
        for numbers in batches_by_image(pairs, self.batch_size):
            batch = share_images(
                [pairs[number] for number in numbers],
                references=taken,
                digested=self.store is not None,
            )
            for owners, block in self._read_batch(batch, hidden):
                blocks.append(([[numbers[row] for row in rows] for rows in owners], block))
                if progress and owners:
                    progress(sum(map(len, owners)))
        origin = Origin(self.backend.identity, self.prompt, references, self.by, self.samples)
        collector = ReadingsCollector(self.scale, len(pairs), origin)
        for owners, block in blocks:
            collector.add(block, owners)
        return collector.readings()

    def _read_batch(self, pairs: Sequence[Pair], hidden: bool) -> Iterator[_OwnedBlock]:
        """Yield blocks, each reading with its rows.

        With a store, identical pairs are read once.
        """
        groups: dict[bool, dict[PairKey | int, list[int]]] = {}
        reasons: dict[int, str] = {}
        for row, pair in enumerate(pairs):
            key: PairKey | int = row
            try:
                if pair.problem:
                    raise BadDataError(pair.problem)
                if self.store is not None:
                    key = PairKey(image_digest(pair.image), pair.caption, pair.references)
            except (ImageError, InputError) as error:
                reasons[row] = str(error)
            else:
                groups.setdefault(bool(pair.references), {}).setdefault(key, []).append(row)
        for having, rows in groups.items():
            yield from self._read_group(pairs, having, rows, hidden)
        if reasons:
            yield [[row] for row in reasons], Readings.failed(self.scale, list(reasons.values()))

    def _read_group(
        self,
        pairs: Sequence[Pair],
        having: bool,
        rows: Mapping[Any, list[int]],
        hidden: bool,
    ) -> Iterator[_OwnedBlock]:
        """Yield stored readings of pairs with references, or without, and read the rest."""
        keys, owners = list(rows), list(rows.values())
        template = self.prompt.with_references if having else self.prompt.free
        if template is None:
            reason = self.prompt.why_no_template(having)
            yield owners, Readings.failed(self.scale, [reason] * len(keys))
            return
        kept: dict[int, Readings] = {}  # too few draws, by place
        missing: dict[int, list[int]] = {}  # places, by the number of missing draws
        if self.store is None:
            missing[self.samples] = [*range(len(keys))]
        else:
            run = RunKey(self.backend.identity, template, self.scale)
            stored, found = self.store.get(run, keys, hidden=hidden)
            whole: Sequence[int] = range(len(stored))
            if self.samples:
                lacking = np.maximum(self.samples - draws_of(stored), 0)
                whole = np.flatnonzero(lacking == 0).tolist()
                for row in np.flatnonzero(lacking).tolist():
                    kept[found[row]] = stored.take([row])
                    missing.setdefault(int(lacking[row]), []).append(found[row])
            yield (
                [owners[found[row]] for row in whole],
                stored.take(whole) if kept else stored,
            )
            if absent := sorted({*range(len(keys))} - {*found}):
                missing.setdefault(self.samples, []).extend(absent)
        for draws, asked in missing.items():
            backend = self.backend if draws == self.samples else self.backend.sampling(draws)  # type: ignore[attr-defined]  # one that samples
            batch = [pairs[owners[place][0]] for place in asked]
            for numbers, block in self._ask(backend, batch, hidden):
                places = [asked[number] for number in numbers]
                if kept:
                    block = self._add_draws(block, [kept.get(place) for place in places])
                if self.store is not None:
                    self.store.put(run, [keys[place] for place in places], block)
                yield [owners[place] for place in places], block

    def _add_draws(self, block: Readings, kept: Sequence[Readings | None]) -> Readings:
        """Add the draws of a block to those that were kept; a row that failed stays failed."""
        drawn = draws_of(block) > 0
        rows = [block.take([row]) for row in range(len(block))]
        return Readings.concat(
            self.scale,
            [
                merge_draws(old, new) if old is not None and whole else new
                for old, new, whole in zip(kept, rows, drawn, strict=True)
            ],
        )

    def _ask(self, backend: Backend, pairs: Sequence[Pair], hidden: bool) -> Blocks:
        """Yield readings with the numbers of their pairs; pairs the model fails on are failed rows.

        Answers from before the failure are kept.
        """
        left = set(range(len(pairs)))
        wrong = f"did not return one reading for each of {len(pairs)} pairs"
        try:
            read = backend.read(pairs, self.prompt, self.scale, hidden=hidden)
            for numbers, block in read or ():  # a plug-in may lack its yield or return
                scale = getattr(block, "scale", None)
                if scale is not self.scale and scale != self.scale:
                    given = getattr(scale, "name", None)
                    wrong = f"returned scale {given!r} but was asked for {self.scale.name!r}"
                    break
                if len(block) != len(numbers) or not left.issuperset(numbers):
                    break
                left.difference_update(numbers)
                yield numbers, block
            else:
                if not left:
                    return
        except (SystemExit, StopIteration) as error:
            raise exited(backend, error) from error
        except BackendError as error:
            yield sorted(left), Readings.failed(self.scale, [str(error)] * len(left))
            return
        raise BackendError(f"{backend.identity.model} {wrong}")

    def score_frame(self, frame: Any, **columns: Unpack[RowOptions]) -> Any:
        """Return a copy of a ``pandas.DataFrame`` with scores added.

        Args:
            frame: A row per pair. New are the columns of ``Scores.to_pandas``: score, raw, ...
            columns: Where things are: ``image="image"``, ``caption="caption"``,
                ``references=None`` (a column of lists), ``images=None`` (the folder in which names
                and COCO's numbers are found, the files of numbers being the column file),
                ``annotations=None`` (COCO's), ``prefix=""`` for the new columns.
        """
        return RowScorer(self, **columns).frame(frame)

    def map_fn(self, **columns: Unpack[RowOptions]) -> RowScorer:
        """Return the function that ``datasets.Dataset.map`` applies: adds score, raw and error.

        ``columns`` are those of :meth:`score_frame`. It takes a row, or faster, a batch:
        ``dataset.map(judge.map_fn(caption="text"), batched=True)``.
        """
        return RowScorer(self, **columns)

    def __deepcopy__(self, memo: dict[int, Any]) -> Judge:
        return self  # it never changes, and a model is too large to be copied


def _sentences_of(pairs: Sequence[Pair], rows: Iterable[int]) -> dict[int, list[Pair]]:
    """Return a pair per sentence, for those of the rows whose captions have several."""
    return {row: part for row in rows if len(part := sentence_pairs(pairs[row])) > 1}


def _with_sentences(
    whole: Readings, parts: Mapping[int, Sequence[Pair]], read: Readings
) -> Readings:
    """Add the readings of sentences, which follow each other, to the rows of their captions."""
    sentences, start = {}, 0
    for row, part in parts.items():
        texts, end = tuple(pair.caption for pair in part), start + len(part)
        sentences[row] = SentenceReadings(texts, read.take(range(start, end)))
        start = end
    return replace(whole, sentences=sentences)


def _in_proportion(progress: Progress, pairs: int, asked: int) -> Progress:
    """Scale progress from readings to pairs."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        progress(done * pairs // asked - before * pairs // asked)

    return advance


@cache
def note_ignored_references(model: str) -> None:
    """Log once per process, on the logger ``discode``, that a model ignores references."""
    logging.getLogger("discode").warning(
        "discode: %s ignores references (recorded as references:ignored)", model
    )


def load(
    model: str | os.PathLike[str] | Backend | None = None,
    *,
    method: str | Decoder = "discode",
    prompt: str | os.PathLike[str] | Prompt | None = None,
    scale: str | Scale | None = None,
    store: str | os.PathLike[str] | ReadingStore | None = None,
    batch_size: int | None = None,
    by: str = "auto",
    **options: Any,
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
        store: A file that keeps readings; the next run asks only for missing ones.
        batch_size: Pairs per batch; 64, or what the model advises, if None.
        by: What is judged: captions of several sentences as a whole ("caption"), by their
            sentences ("sentence"), or by them where the model would not read all ("auto").
        options: The model's own options, as ``discode models --options`` lists them:
            ``threads=2`` for the embedded model, ``device="cuda"``, ``dtype="bfloat16"`` for a
            local one, ``base_url="http://localhost:8000/v1"`` for a served one.

    >>> load("embedded", method="smoothing", threads=2).signature["model"]
    'discode-embedded'
    """
    if by not in WAYS:  # before a model is loaded for minutes
        raise not_a_way(by)
    backend = open_backend("embedded" if model is None else model, options)
    if prompt is not None and not isinstance(prompt, Prompt):
        prompt = get_prompt(str(prompt))
    chosen = None if scale is None else get_scale(scale)
    if prompt is not None or chosen is not None:
        prompt = choose_prompt(prompt, chosen, backend.prompt)
        if prompt.scale is not None:
            chosen = get_scale(prompt.scale)
    judge = Judge(
        backend,
        method if isinstance(method, Decoder) else get_decoder(method),
        prompt or backend.prompt,
        chosen or backend.scale,
        None,
        backend.batch_size if batch_size is None else batch_size,
        by,
    )
    if store is not None:  # last: a judge that is refused leaves no file
        opened = store if isinstance(store, ReadingStore) else ReadingStore(store)
        judge = replace(judge, store=opened)
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
        log_probs: (K,) or (N, K) natural log-probabilities over the scale's answers, as lists,
            an array or a tensor; or mappings of tokens to log-probabilities; or what OpenAI's
            interfaces return: a response with log-probabilities, its ``logprobs``, or one
            position of it; or :class:`Readings`, whose own scale counts then. Those that a
            judge read keep its model and prompt in the signature.
        method: A row of ``discode methods``, e.g. "discode" or "paper".
        scale: "ten", "five", "letters", "unit" (digits after "0."), or a range like "1-7".
        missing: How answers missing from a mapping are filled: "nan", or "spread" for an equal
            share of the remaining probability.
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
        else _read(log_probs, get_scale(scale), missing)
    )
    decoder = get_decoder(method, **options)
    if (origin := readings.origin) is not None:
        signature = sign(
            origin.identity, readings.scale, decoder, origin.prompt, references=origin.references,
            by=origin.by, samples=origin.samples,
        )  # fmt: skip
    else:
        signature = sign(GIVEN, readings.scale, decoder, missing=missing)
    return Scores.build(decoder, readings, signature)


def _read(log_probs: Any, scale: Scale, missing: str) -> Readings:
    parsed = readings_from_json(log_probs, scale, missing=missing)
    if parsed is None:
        return Readings.of(log_probs, scale, missing=missing)
    for row, place in enumerate(parsed[1]):
        if place is not None:
            LOG.info("row %d: the answer is token %d of %d", row, place[0] + 1, place[1])
    return parsed[0]
