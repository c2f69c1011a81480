"""The table of metrics, and the factory that makes those of one run share what they can."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from discode._judge import Judge, load
from discode._plugins import Table
from discode._prompts import VQASCORE, Prompt
from discode._scales import YES_NO, Scale
from discode._scores import Metric
from discode.backends import Backend
from discode.backends._served.client import ChatClient
from discode.decoders import METHODS, get_decoder
from discode.decoders._preset import is_preset
from discode.errors import DiscodeError, InputError
from discode.metrics._bert import BERT_MEASURES, DEFAULT_BERT, BertScore
from discode.metrics._clip import DEFAULT_CLIP, ClipEncoder, ClipScore
from discode.metrics._llm import chat_metric
from discode.metrics._ngram import TextMetric, TokenisedTexts
from discode.metrics._polos import DEFAULT_POLOS_TEXT, Polos
from discode.metrics._prefer import PreferenceMetric
from discode.metrics._scorefile import ScoreFile
from discode.options import COUNT, TEXT, Option, fill_options
from discode.readings._store import ReadingStore

T = TypeVar("T")


@dataclass(eq=False)
class MetricFactory:
    """Makes metrics by name; those it makes share models, tokens and embeddings.

    Nothing is opened before a metric that needs it is made.

    Attributes:
        model: The judge's model, as :func:`discode.load` takes it.
        options: The model's options, likewise; CLIP and BERTScore run on its ``device``, too.
        prompt, scale, store, batch_size: See :func:`discode.load`.
        default_store: Where readings are kept if ``store`` is None and they are not a recording.
    """

    model: str | os.PathLike[str] | Backend | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | os.PathLike[str] | Prompt | None = None
    scale: str | Scale | None = None
    store: str | os.PathLike[str] | ReadingStore | None = None
    batch_size: int | None = None
    default_store: str | os.PathLike[str] | None = None
    _shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def make(self, spec: str) -> Metric:
        """Return a metric: a row of ``METRICS``, ``scorefile:PATH#column``, or any decoder.

        Its options follow the name after a colon ("clip-s:model=ORG/NAME",
        "discode:sigma2=0.05"). A decoder may be a preset file ("mine.json"); with "ref-" before it
        the judge sees the references.

        >>> sorted(MetricFactory().make("ref-smoothing").needs)
        ['image', 'references']
        """
        if spec.startswith("scorefile:"):
            return ScoreFile(spec.removeprefix("scorefile:"))
        if asks_judge(spec):
            method = spec.removeprefix("ref-")
            decoder = self.share(get_decoder, method)
            references = "never" if method == spec else "always"
            return replace(self.judge, decoder=decoder, references=references)
        row, values = find_metric(spec)
        return row.make(self, row.name, **values)

    def open_judge(self) -> Judge:
        """Return a judge; a served model is not asked anything yet."""
        judge = load(
            self.model,
            method=self.share(get_decoder, "discode"),
            prompt=self.prompt,
            scale=self.scale,
            store=self.store,
            batch_size=self.batch_size,
            **self.options,
        )
        return judge if self.default_store is None else judge.with_store(self.default_store)

    @property
    def judge(self) -> Judge:
        """The judge with the default decoder; all decoders share its model."""
        return self.share(self._open_and_ask)

    def _open_and_ask(self) -> Judge:
        judge = self.open_judge()
        judge.backend.identity  # noqa: B018  # a served model is asked for it, once
        return judge

    def share(self, opener: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Return the result of ``opener``, or raise its error, calling it once per arguments.

        Metrics with the same arguments share it.
        """
        key = (opener, arguments, tuple(sorted(options.items())))
        if key not in self._shared:
            try:
                self._shared[key] = opener(*arguments, **options)
            except DiscodeError as error:
                self._shared[key] = error
        shared: T | DiscodeError = self._shared[key]
        if isinstance(shared, DiscodeError):
            raise shared
        return shared

    @property
    def device(self) -> str | None:
        """Where encoders run: the judge's device, if it was chosen."""
        return self.options.get("device")


def asks_judge(name: str) -> bool:
    """Return whether a metric is the judge with a decoder.

    >>> asks_judge("ref-discode:sigma2=0.05"), asks_judge("cider")
    (True, False)
    """
    method = name.removeprefix("ref-")
    word = method.partition(":")[0]
    return word in METHODS or is_preset(method) or (word not in METRICS and METHODS.takes(method))


def find_metric(spec: str) -> tuple[MetricRow, dict[str, Any]]:
    """Return a metric's row and the value of every option; mistakes in ``spec`` are errors.

    >>> row, options = find_metric("bertscore:idf=true")
    >>> row.name, options["idf"], options["model"]
    ('bertscore', True, 'roberta-large')
    """
    name, row, typed = METRICS.find(spec, imports=True, also=", or scorefile:PATH")
    return row, fill_options(row.options, typed, f"metric {name!r}")


@dataclass(frozen=True)
class MetricRow:
    """A metric, what it needs of a pair, and what may be chosen after its name and a colon.

    ``make`` makes it from a factory, its name, and the value of every option by keyword.
    """

    name: str
    about: str
    needs: frozenset[str]
    make: Callable[..., Metric]
    options: tuple[Option, ...] = ()


_IMAGE, _REFERENCES = frozenset({"image"}), frozenset({"references"})
_BOTH = _IMAGE | _REFERENCES


def _make_text_metric(factory: MetricFactory, name: str) -> Metric:
    return TextMetric(name, factory.share(TokenisedTexts))


def _make_bert_score(factory: MetricFactory, name: str, model: str, **options: Any) -> Metric:
    return factory.share(BertScore.open, model, device=factory.device, **options)


def _make_clip_score(
    factory: MetricFactory, name: str, model: str, scaled: float = 2.5, **options: Any
) -> Metric:
    encoder = factory.share(ClipEncoder.open, model, device=factory.device, **options)
    return ClipScore(encoder, name, scaled, references=name.startswith("ref-"))


def _make_polos(
    factory: MetricFactory, name: str, weights: str, model: str, text_model: str
) -> Metric:
    return factory.share(
        Polos.open, weights, clip_model=model, text_model=text_model, device=factory.device
    )


def ask_vqascore(judge: Judge) -> Judge:
    """Return a judge with VQAScore's question and method."""
    judge = replace(judge, prompt=VQASCORE, scale=YES_NO, references="never")
    return judge.with_method("p-yes")


def _make_vqascore(factory: MetricFactory, name: str) -> Metric:
    return ask_vqascore(factory.judge)


def _make_prefer(factory: MetricFactory, name: str) -> Metric:
    return PreferenceMetric(factory.judge)


def _make_chat_metric(factory: MetricFactory, name: str, endpoint: str, model: str) -> Metric:
    return chat_metric(factory.share(ChatClient, endpoint, model), name)


_CLIP = (Option("model", DEFAULT_CLIP, "hub name or folder of the CLIP", (TEXT,)),)
_CHAT = (
    Option("endpoint", None, "URL of a server with OpenAI's chat completions", (TEXT,)),
    Option("model", None, "chat model to ask there", (TEXT,)),
)


def _weights(file: str, about: str) -> Option:
    return Option("weights", None, f"file of {about} ({file})", (TEXT,))


_TEXT_METRICS = {
    "bleu-1": "BLEU of words, per pair",
    "bleu-2": "BLEU up to two words",
    "bleu-3": "BLEU up to three words",
    "bleu-4": "BLEU up to four words",
    "rouge-l": "longest common subsequence with the references",
    "meteor": "METEOR 1.5: stems, synonyms, paraphrases",
    "spice": "SPICE: F-score of scene graphs; needs Stanford's models",
    "cider": "CIDEr-D, frequencies over the set",
}
_PAC = partial(_make_clip_score, scaled=2.0)
_PAC_WEIGHTS = _weights("clip_ViT-B-32.pth", "PAC-S's weights for that CLIP")
_PAC_PLUS_WEIGHTS = _weights("PAC++_clip_ViT-L-14.pth", "PAC-S++'s weights for that CLIP")
_ROWS = [
    *(
        MetricRow(name, about, _REFERENCES, _make_text_metric)
        for name, about in _TEXT_METRICS.items()
    ),
    MetricRow(
        "bertscore",
        "BERTScore, the best reference",
        _REFERENCES,
        _make_bert_score,
        (
            Option("model", DEFAULT_BERT, "hub name or folder of the encoder", (TEXT,)),
            Option("layer", None, "layer that is compared; none: the model's best", (COUNT, None)),
            Option("idf", False, "whether rare words weigh more", (False, True)),
            Option("measure", "f1", "which of the three is the score", BERT_MEASURES),
        ),
    ),
    *(
        row
        for title, scaled, make, options in (
            ("CLIP-S", "2.5", _make_clip_score, _CLIP),
            ("PAC-S", "2", _PAC, (*_CLIP, _PAC_WEIGHTS)),
            ("PAC-S++", "2", partial(_PAC, low_rank=True), (*_CLIP, _PAC_PLUS_WEIGHTS)),
        )
        for row in (
            MetricRow(title.lower(), f"{title}: {scaled} max(cos, 0)", _IMAGE, make, options),
            MetricRow(f"ref-{title.lower()}", f"Ref{title}", _BOTH, make, options),
        )
    ),
    MetricRow(
        "polos",
        "Polos: trained on ratings, the best reference",
        _BOTH,
        _make_polos,
        (
            _weights("reprod.ckpt", "its published weights, with those of its CLIP and RoBERTa"),
            Option("model", DEFAULT_CLIP, "CLIP that they belong to", (TEXT,)),
            Option("text_model", DEFAULT_POLOS_TEXT, "RoBERTa that they belong to", (TEXT,)),
        ),
    ),
    MetricRow("vqascore", "VQAScore: the judge's P(Yes)", _IMAGE, _make_vqascore),
    MetricRow(
        "prefer",
        "judge: which caption is better",
        _IMAGE | {"preferences"},
        _make_prefer,
    ),
    MetricRow("g-veval", "G-VEval: a chat model's mean", _IMAGE, _make_chat_metric, _CHAT),
    MetricRow("ref-g-veval", "G-VEval with references", _BOTH, _make_chat_metric, _CHAT),
    MetricRow(
        "clair",
        "CLAIR: a chat model compares with references",
        _REFERENCES,
        _make_chat_metric,
        _CHAT,
    ),
    *(
        MetricRow(
            f"{prefix}{method}",
            f"judge: {METHODS[method].about}" if not prefix else f"{method} with references",
            _BOTH if prefix else _IMAGE,
            MetricFactory.make,
        )
        for prefix in ("", "ref-")
        for method in ("raw", "smoothing", "fleur", "discode", "paper")
    ),
]


def _adopt(name: str, plugin: object) -> MetricRow:
    if isinstance(plugin, MetricRow):
        return plugin
    raise InputError(f"{name} is not a metric; give a MetricRow")


METRICS = Table("metric", "discode.metrics", {row.name: row for row in _ROWS}, _adopt)
"""Every named metric; a factory also makes judges with other decoders, and reads score files."""
