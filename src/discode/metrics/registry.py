"""Metrics by name, and the workshop that makes those of one run share what they can."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.backends import Backend
from discode.backends.served.client import ChatClient, ChatModel
from discode.decoders import METHODS, get_decoder
from discode.errors import InputError, lookup
from discode.judge import Judge, load
from discode.metrics.bert import DEFAULT_BERT, BertScore
from discode.metrics.clip import DEFAULT_CLIP, ClipScore, Encoder
from discode.metrics.judged import Judged, SharedReadings
from discode.metrics.llm import make_clair, make_g_veval
from discode.metrics.ngram import Cider, TextMetric, Texts
from discode.metrics.scorefile import ScoreFile
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings.store import ReadingStore
from discode.scales import Scale
from discode.scores import Metric, Scores


@dataclass(frozen=True)
class Workshop:
    """Makes metrics by name; those of one workshop share models, readings, tokens, embeddings.

    Nothing is opened before a metric that needs it is made.

    Attributes:
        model: The judge's model, as :func:`discode.load` takes it; also the five that follow.
        options: Its options; ``device`` is for CLIP and BERTScore, too.
        prompt, scale, store, batch_size: See :func:`discode.load`.
        clip_model: A CLIP's hub name or folder.
        pac_weights: PAC-S's file of weights for that CLIP (clip_ViT-B-32.pth).
        bert_model, bert_layer, bert_idf: See :meth:`~discode.metrics.bert.BertScore.open`.
        endpoint, endpoint_model: A server that speaks OpenAI's chat completions, and whom to ask.
        chat: A chat model of your own instead.
    """

    model: str | os.PathLike[str] | Backend | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | os.PathLike[str] | Prompt | None = None
    scale: str | Scale | None = None
    store: str | os.PathLike[str] | ReadingStore | None = None
    batch_size: int | None = None
    clip_model: str = DEFAULT_CLIP
    pac_weights: str | os.PathLike[str] | None = None
    bert_model: str = DEFAULT_BERT
    bert_layer: int | None = None
    bert_idf: bool = False
    endpoint: str | None = None
    endpoint_model: str | None = None
    chat: ChatModel | None = None

    def make(self, name: str) -> Metric:
        """Return a metric: a row of ``METRICS``, ``scorefile:PATH#column``, or any decoder.

        A decoder's name may carry options ("discode:sigma2=0.05"); with "ref-" in front of it the
        judge sees the references.

        >>> sorted(Workshop().make("ref-smoothing").needs)
        ['image', 'references']
        """
        if not isinstance(name, str):
            raise InputError(f"a metric is a name, not {name!r}")
        if name.startswith("scorefile:"):
            return ScoreFile(name.removeprefix("scorefile:"))
        plain = name.removeprefix("ref-")
        if name not in METRICS and plain.partition(":")[0] in METHODS:
            return self.judged(name, plain, references=plain != name)
        return lookup(METRICS, name, "metric", also=", or scorefile:PATH").make(self)

    def judged(self, name: str, method: str, *, references: bool = False) -> Judged:
        """Return the judge with a decoder, with or without references."""
        judge = replace(self.judge, decoder=get_decoder(method))
        return Judged(name, judge, references, self.readings)

    @cached_property
    def judge(self) -> Judge:
        """The judge whose readings all decoders share."""
        return load(
            self.model, method="raw", prompt=self.prompt, scale=self.scale, store=self.store,
            batch_size=self.batch_size, **self.options,
        )  # fmt: skip

    @cached_property
    def readings(self) -> SharedReadings:
        """What the model said last."""
        return SharedReadings()

    @cached_property
    def texts(self) -> Texts:
        """Words and scores that text metrics share."""
        return Texts()

    @cached_property
    def clip(self) -> Encoder:
        """The CLIP of CLIP-S."""
        return Encoder.open(self.clip_model, device=self.options.get("device"))

    @cached_property
    def pac(self) -> Encoder:
        """The same CLIP with PAC-S's weights."""
        if self.pac_weights is None:
            raise InputError(
                "pac-s needs its published weights; give pac_weights=FILE (clip_ViT-B-32.pth; "
                "--pac-weights), and as clip_model the CLIP they belong to"
            )
        weights = os.fspath(self.pac_weights)
        return Encoder.open(self.clip_model, weights=weights, device=self.options.get("device"))

    @cached_property
    def talker(self) -> ChatModel:
        """The chat model of G-VEval and CLAIR."""
        if self.chat is not None:
            return self.chat
        if not self.endpoint or not self.endpoint_model:
            raise InputError(
                "g-veval and clair ask a chat model; give endpoint=URL (--endpoint "
                "http://localhost:8000/v1) and endpoint_model=NAME (--endpoint-model)"
            )
        return ChatClient(self.endpoint, self.endpoint_model)


@dataclass(frozen=True)
class MetricRow:
    """A metric's name, what it is, what it wants of a pair, and how a workshop makes it."""

    name: str
    about: str
    needs: frozenset[str]
    make: Callable[[Workshop], Metric]


def _text(name: str, shop: Workshop) -> Metric:
    return TextMetric(name, shop.texts)


def _cider(shop: Workshop) -> Metric:
    return Cider(shop.texts)


def _bert(shop: Workshop) -> Metric:
    return BertScore.open(
        shop.bert_model, layer=shop.bert_layer, idf=shop.bert_idf, device=shop.options.get("device")
    )


def _clip(name: str, references: bool, shop: Workshop) -> Metric:
    if "pac" in name:
        return ClipScore(shop.pac, name, weight=2.0, references=references)
    return ClipScore(shop.clip, name, weight=2.5, references=references)


def _g_veval(references: bool, shop: Workshop) -> Metric:
    return make_g_veval(shop.talker, references=references)


def _clair(shop: Workshop) -> Metric:
    return make_clair(shop.talker)


def _judged(name: str, method: str, references: bool, shop: Workshop) -> Metric:
    return shop.judged(name, method, references=references)


_IMAGE, _REFERENCES = frozenset({"image"}), frozenset({"references"})
_BOTH = _IMAGE | _REFERENCES
_TEXTS = {
    "bleu-1": "BLEU of words, a pair at a time",
    "bleu-2": "BLEU up to pairs of words",
    "bleu-3": "BLEU up to three words",
    "bleu-4": "BLEU up to four words",
    "rouge-l": "longest common subsequence with the references",
    "meteor": "METEOR 1.5: stems, synonyms, paraphrases",
    "spice": "SPICE: F-score of scene graphs; wants Stanford's models",
}
_JUDGED = ("raw", "smoothing", "fleur", "discode", "paper")

_ROWS = [
    *(MetricRow(name, about, _REFERENCES, partial(_text, name)) for name, about in _TEXTS.items()),
    MetricRow("cider", "CIDEr-D, frequencies over the set", Cider.needs, _cider),
    MetricRow("bertscore", "BERTScore F1, the best reference", _REFERENCES, _bert),
    MetricRow("clip-s", "CLIP-S: 2.5 max(cos, 0)", _IMAGE, partial(_clip, "clip-s", False)),
    MetricRow("ref-clip-s", "RefCLIP-S", _BOTH, partial(_clip, "ref-clip-s", True)),
    MetricRow("pac-s", "PAC-S: 2 max(cos, 0)", _IMAGE, partial(_clip, "pac-s", False)),
    MetricRow("ref-pac-s", "RefPAC-S", _BOTH, partial(_clip, "ref-pac-s", True)),
    MetricRow("g-veval", "G-VEval: a chat model's mean", _IMAGE, partial(_g_veval, False)),
    MetricRow("ref-g-veval", "G-VEval with references", _BOTH, partial(_g_veval, True)),
    MetricRow("clair", "CLAIR: a chat model compares with references", _REFERENCES, _clair),
    *(
        MetricRow(
            f"{prefix}{method}",
            f"judge{' with references' * bool(prefix)}: {METHODS[method].about}",
            _BOTH if prefix else _IMAGE,
            partial(_judged, f"{prefix}{method}", method, bool(prefix)),
        )
        for prefix in ("", "ref-")
        for method in _JUDGED
    ),
]
METRICS: dict[str, MetricRow] = {row.name: row for row in _ROWS}
"""Every named metric; a judge with any other decoder, and score files, go by their names."""


def score(
    metric: Metric,
    pairs: Sequence[Pair],
    repeats: Sequence[int] | NDArray[np.integer] | None = None,
) -> Scores:
    """Score pairs with any metric; ``repeats`` (N,) goes to those that need it (CIDEr)."""
    if isinstance(metric, Cider):
        return metric.score_pairs(pairs, repeats)
    return metric.score_pairs(pairs)
