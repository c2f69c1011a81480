"""The table of metrics, and the factory that makes those of one run share what they can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from discode.backends import Backend
from discode.backends.served.client import ChatClient, ChatModel
from discode.decoders import METHODS, get_decoder
from discode.decoders.preset import is_preset
from discode.errors import DiscodeError, InputError, lookup
from discode.judge import Judge, load
from discode.metrics.bert import DEFAULT_BERT, BertScore
from discode.metrics.clip import DEFAULT_CLIP, ClipEncoder, ClipScore
from discode.metrics.judge_metric import JudgeMetric, SharedReadings
from discode.metrics.llm import make_clair, make_g_veval
from discode.metrics.ngram import Cider, TextMetric, TokenisedTexts
from discode.metrics.polos import DEFAULT_POLOS_TEXT, Polos
from discode.metrics.scorefile import ScoreFile
from discode.prompts import Prompt
from discode.readings.store import ReadingStore
from discode.scales import Scale
from discode.scores import Metric


@dataclass(frozen=True)
class MetricFactory:
    """Makes metrics by name; those it makes share models, readings, tokens and embeddings.

    Nothing is opened before a metric that needs it is made.

    Attributes:
        model: The judge's model, as :func:`discode.load` takes it.
        options: The model's options, likewise; CLIP and BERTScore run on its ``device``, too.
        prompt, scale, store, batch_size: See :func:`discode.load`.
        default_store: Where readings are kept if ``store`` is None and they are not a recording.
        clip_model: A CLIP's hub name or folder.
        pac_weights: PAC-S's file of weights for that CLIP (clip_ViT-B-32.pth).
        pac_plus_weights: PAC-S++'s, likewise (PAC++_clip_ViT-L-14.pth).
        polos_weights: Polos's checkpoint, with the weights of its own CLIP ViT-B/32 and RoBERTa.
        polos_text_model: The RoBERTa they belong to, for its configuration and tokenizer.
        bert_model, bert_layer, bert_idf: See :meth:`~discode.metrics.bert.BertScore.open`.
        endpoint, endpoint_model: A server with OpenAI's chat completions, and the model to ask.
        chat: A chat model of your own instead.
    """

    model: str | os.PathLike[str] | Backend | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | os.PathLike[str] | Prompt | None = None
    scale: str | Scale | None = None
    store: str | os.PathLike[str] | ReadingStore | None = None
    batch_size: int | None = None
    default_store: str | os.PathLike[str] | None = None
    clip_model: str = DEFAULT_CLIP
    pac_weights: str | os.PathLike[str] | None = None
    pac_plus_weights: str | os.PathLike[str] | None = None
    polos_weights: str | os.PathLike[str] | None = None
    polos_text_model: str = DEFAULT_POLOS_TEXT
    bert_model: str = DEFAULT_BERT
    bert_layer: int | None = None
    bert_idf: bool = False
    endpoint: str | None = None
    endpoint_model: str | None = None
    chat: ChatModel | None = None

    def make(self, name: str) -> Metric:
        """Return a metric: a row of ``METRICS``, ``scorefile:PATH#column``, or any decoder.

        A decoder's name may carry options ("discode:sigma2=0.05") or be a preset file
        ("mine.json"); with "ref-" before it the judge sees the references.

        >>> sorted(MetricFactory().make("ref-smoothing").needs)
        ['image', 'references']
        """
        if not isinstance(name, str):
            raise InputError(f"a metric is given by its name, not by {name!r}")
        if name.startswith("scorefile:"):
            return ScoreFile(name.removeprefix("scorefile:"))
        if asks_judge(name):
            return self.judge_metric(name)
        return lookup(METRICS, name, "metric", also=", or scorefile:PATH").make(self, name)

    def expect(self, names: Iterable[str]) -> None:
        """Say which metrics will be made, so that the judge reads once what all of them need.

        Nothing is opened, and what is wrong with a name is said when its metric is made.
        """
        for name in filter(asks_judge, names):
            with suppress(DiscodeError):
                self.readings.expect(get_decoder(name.removeprefix("ref-")))

    def judge_metric(self, name: str) -> JudgeMetric:
        """Return the judge with the decoder ``name``, which sees references after "ref-"."""
        method = name.removeprefix("ref-")
        judge = self.judge.with_method(method)
        return JudgeMetric(name, judge, method != name, self.readings)

    def open_judge(self) -> Judge:
        """Return a judge with the decoder "raw"; a served model is not asked anything yet."""
        judge = load(
            self.model,
            method="raw",
            prompt=self.prompt,
            scale=self.scale,
            store=self.store,
            batch_size=self.batch_size,
            **self.options,
        )
        return judge if self.default_store is None else judge.with_store(self.default_store)

    @property
    def judge(self) -> Judge:
        """The judge whose readings all decoders share."""
        if isinstance(self._judge, DiscodeError):
            raise self._judge
        return self._judge

    @cached_property
    def _judge(self) -> Judge | DiscodeError:
        """The judge, or why there is none: opened once, for any number of metrics and benchmarks.

        Its signature needs a served model's answer, so a server that cannot be reached is not
        tried again for every metric.
        """
        try:
            judge = self.open_judge()
            judge.signature  # noqa: B018  # kept by the judge
        except DiscodeError as error:
            return error
        return judge

    @cached_property
    def readings(self) -> SharedReadings:
        """The judge's last readings."""
        return SharedReadings()

    @cached_property
    def texts(self) -> TokenisedTexts:
        """Words and scores that text metrics share."""
        return TokenisedTexts()

    @cached_property
    def bert(self) -> BertScore:
        """BERTScore with its model."""
        return BertScore.open(
            self.bert_model,
            layer=self.bert_layer,
            idf=self.bert_idf,
            device=self.options.get("device"),
        )

    @cached_property
    def clip(self) -> ClipEncoder:
        """The CLIP of CLIP-S."""
        return ClipEncoder.open(self.clip_model, device=self.options.get("device"))

    @cached_property
    def pac(self) -> ClipEncoder:
        """The same CLIP with PAC-S's weights."""
        if self.pac_weights is None:
            raise InputError(
                "pac-s needs its published weights; give pac_weights=FILE (clip_ViT-B-32.pth; "
                "--pac-weights), and as clip_model the CLIP they belong to"
            )
        weights = os.fspath(self.pac_weights)
        return ClipEncoder.open(self.clip_model, weights=weights, device=self.options.get("device"))

    @cached_property
    def pac_plus(self) -> ClipEncoder:
        """The same CLIP with PAC-S++'s weights."""
        if self.pac_plus_weights is None:
            raise InputError(
                "pac-s++ needs its published weights; give pac_plus_weights=FILE "
                "(PAC++_clip_ViT-L-14.pth; --pac-plus-weights), and as clip_model the CLIP they "
                "belong to"
            )
        weights, device = os.fspath(self.pac_plus_weights), self.options.get("device")
        return ClipEncoder.open(self.clip_model, weights=weights, low_rank=True, device=device)

    @cached_property
    def polos(self) -> Polos:
        """Polos with its encoders."""
        if self.polos_weights is None:
            raise InputError(
                "polos needs its published checkpoint; give polos_weights=FILE (reprod.ckpt; "
                "--polos-weights)"
            )
        return Polos.open(
            os.fspath(self.polos_weights),
            clip_model=self.clip_model,
            text_model=self.polos_text_model,
            device=self.options.get("device"),
        )

    @cached_property
    def chat_model(self) -> ChatModel:
        """The chat model of G-VEval and CLAIR."""
        if self.chat is not None:
            return self.chat
        if not self.endpoint or not self.endpoint_model:
            raise InputError(
                "g-veval and clair ask a chat model; give endpoint=URL (--endpoint "
                "http://localhost:8000/v1) and endpoint_model=NAME (--endpoint-model)"
            )
        return ChatClient(self.endpoint, self.endpoint_model)


def asks_judge(name: str) -> bool:
    """Return whether a metric is the judge with a decoder.

    >>> asks_judge("ref-discode:sigma2=0.05"), asks_judge("cider")
    (True, False)
    """
    if name in METRICS:
        return METRICS[name].make is MetricFactory.judge_metric
    method = name.removeprefix("ref-")
    return is_preset(method) or method.partition(":")[0] in METHODS


@dataclass(frozen=True)
class MetricRow:
    """A metric's name, what it is, what it needs of a pair, and how a factory makes it by name."""

    name: str
    about: str
    needs: frozenset[str]
    make: Callable[[MetricFactory, str], Metric]


_IMAGE, _REFERENCES = frozenset({"image"}), frozenset({"references"})
_BOTH = _IMAGE | _REFERENCES


def _text_metric(factory: MetricFactory, name: str) -> Metric:
    return TextMetric(name, factory.texts)


_ROWS = [
    MetricRow("bleu-1", "BLEU of words, per pair", _REFERENCES, _text_metric),
    MetricRow("bleu-2", "BLEU up to two words", _REFERENCES, _text_metric),
    MetricRow("bleu-3", "BLEU up to three words", _REFERENCES, _text_metric),
    MetricRow("bleu-4", "BLEU up to four words", _REFERENCES, _text_metric),
    MetricRow(
        "rouge-l", "longest common subsequence with the references", _REFERENCES, _text_metric
    ),
    MetricRow("meteor", "METEOR 1.5: stems, synonyms, paraphrases", _REFERENCES, _text_metric),
    MetricRow(
        "spice",
        "SPICE: F-score of scene graphs; needs Stanford's models",
        _REFERENCES,
        _text_metric,
    ),
    MetricRow(
        "cider",
        "CIDEr-D, frequencies over the set",
        _REFERENCES,
        lambda factory, name: Cider(factory.texts),
    ),
    MetricRow(
        "bertscore",
        "BERTScore F1, the best reference",
        _REFERENCES,
        lambda factory, name: factory.bert,
    ),
    MetricRow(
        "clip-s",
        "CLIP-S: 2.5 max(cos, 0)",
        _IMAGE,
        lambda factory, name: ClipScore(factory.clip, name),
    ),
    MetricRow(
        "ref-clip-s",
        "RefCLIP-S",
        _BOTH,
        lambda factory, name: ClipScore(factory.clip, name, references=True),
    ),
    MetricRow(
        "pac-s",
        "PAC-S: 2 max(cos, 0)",
        _IMAGE,
        lambda factory, name: ClipScore(factory.pac, name, weight=2.0),
    ),
    MetricRow(
        "ref-pac-s",
        "RefPAC-S",
        _BOTH,
        lambda factory, name: ClipScore(factory.pac, name, weight=2.0, references=True),
    ),
    MetricRow(
        "pac-s++",
        "PAC-S++: 2 max(cos, 0)",
        _IMAGE,
        lambda factory, name: ClipScore(factory.pac_plus, name, weight=2.0),
    ),
    MetricRow(
        "ref-pac-s++",
        "RefPAC-S++",
        _BOTH,
        lambda factory, name: ClipScore(factory.pac_plus, name, weight=2.0, references=True),
    ),
    MetricRow(
        "polos",
        "Polos: trained on ratings, the best reference",
        _BOTH,
        lambda factory, name: factory.polos,
    ),
    MetricRow(
        "g-veval",
        "G-VEval: a chat model's mean",
        _IMAGE,
        lambda factory, name: make_g_veval(factory.chat_model),
    ),
    MetricRow(
        "ref-g-veval",
        "G-VEval with references",
        _BOTH,
        lambda factory, name: make_g_veval(factory.chat_model, references=True),
    ),
    MetricRow(
        "clair",
        "CLAIR: a chat model compares with references",
        _REFERENCES,
        lambda factory, name: make_clair(factory.chat_model),
    ),
    *(
        MetricRow(
            f"{prefix}{method}",
            f"judge{' with references' if prefix else ''}: {METHODS[method].about}",
            _BOTH if prefix else _IMAGE,
            MetricFactory.judge_metric,
        )
        for prefix in ("", "ref-")
        for method in ("raw", "smoothing", "fleur", "discode", "paper")
    ),
]
METRICS: dict[str, MetricRow] = {row.name: row for row in _ROWS}
"""Every named metric; a factory also makes judges with other decoders, and reads score files."""
