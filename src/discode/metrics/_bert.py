"""BERTScore: words matched greedily by the cosine of their contextual embeddings.

P = Σ_i w_i max_j cos(x_i, y_j) over the caption's tokens i, R the same over a reference's tokens,
F1 = 2PR/(P+R) (Zhang et al., 2020), weights w summing to 1: equal, or inverse document
frequencies. Of several references the best counts, as in the captioning literature. The begin and
end tokens weigh nothing. Scores are not rescaled with a baseline.

BERT-S++ (Yi et al., 2020), which joins the references into one, is not here: it multiplies by a
score without stop words, and the authors' list of 1,528 comes without a licence. Read its scores
from a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._pairs import Pair
from discode._scores import Floats
from discode._signature import Signature
from discode.errors import InputError, require
from discode.metrics._base import PairMetric, RowScores
from discode.metrics._encoders import load_encoder, revision_of, shown_name, text_batches

DEFAULT_BERT = "roberta-large"
BERT_MEASURES = ("precision", "recall", "f1")
# The layers that bert-score found best, for the models that papers use.
LAYERS: dict[str, int] = {
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "roberta-base": 10,
    "roberta-large": 17,
    "distilbert-base-uncased": 5,
    "microsoft/deberta-xlarge-mnli": 40,
}

Encoded = tuple[tuple[int, ...], NDArray[np.float32]]
"""A text's token ids (T,), and their unit vectors (T, D)."""


def greedy_match(
    caption: NDArray[np.floating],
    caption_weights: Floats,
    reference: NDArray[np.floating],
    reference_weights: Floats,
) -> Floats:
    """Return P, R and F1 of (T, D) unit vectors matched with (U, D), weighted (T,) and (U,).

    A text whose weights are all 0 has no words: P, R and F1 are 0.

    >>> eye = np.eye(2)
    >>> greedy_match(eye[:1], np.ones(1), eye, np.ones(2)).round(3).tolist()
    [1.0, 0.5, 0.667]
    """
    if caption_weights.sum() <= 0 or reference_weights.sum() <= 0:
        return np.zeros(3)
    likeness = caption @ reference.T
    precision = float(likeness.max(axis=1) @ caption_weights / caption_weights.sum())
    recall = float(likeness.max(axis=0) @ reference_weights / reference_weights.sum())
    total = precision + recall
    return np.array([precision, recall, 2 * precision * recall / total if total else 0.0])


@dataclass(frozen=True, eq=False)
class BertScore(PairMetric):
    """BERTScore of captions against references.

    Attributes:
        model, tokenizer: The encoder; :meth:`open` loads one.
        layer: Which layer's output is compared; 0 is the embedding.
        idf: Whether rare words weigh more; frequencies come from the references of the set.
        measure: "f1", "precision" or "recall".
    """

    model: Any
    tokenizer: Any
    model_name: str
    revision: str
    layer: int
    idf: bool = False
    measure: str = "f1"

    name = "bertscore"
    needs = frozenset({"references"})

    def __post_init__(self) -> None:
        depth = int(self.model.config.num_hidden_layers)
        if not isinstance(self.layer, int) or not 0 <= self.layer <= depth:
            raise InputError(f"layer={self.layer} is not allowed; {self.model_name} has 0-{depth}")

    @classmethod
    def open(
        cls,
        name: str = DEFAULT_BERT,
        *,
        layer: int | None = None,
        idf: bool = False,
        measure: str = "f1",
        device: str | None = None,
    ) -> BertScore:
        """Load an encoder by its hub name or folder, in float32.

        Without a ``layer`` it is bert-score's choice for models it knows, else the last.
        """
        model, tokenizer = load_encoder(name, _pick, device)
        if layer is None:
            layer = LAYERS.get(name, int(model.config.num_hidden_layers))
        revision = revision_of(name, model)
        return cls(model, tokenizer, shown_name(name), revision, layer, idf, measure)

    @property
    def signature(self) -> Signature:
        """The model, the layer, the weights, and which of P, R and F1."""
        return Signature.of(
            metric=self.name, model=self.model_name, revision=self.revision, layer=self.layer,
            idf="set" if self.idf else "none", measure=self.measure,
        )  # fmt: skip

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs; a text longer than the encoder reads is cut and flagged."""
        texts = [text for pair in pairs for text in (pair.caption, *pair.references)]
        encoded, long = self._encode(list(dict.fromkeys(text.strip() for text in texts)))
        weights = self._weights([pair.references for pair in pairs], encoded)
        value, cut = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
        column = BERT_MEASURES.index(self.measure)
        for row, pair in enumerate(pairs):
            text = pair.caption.strip()
            references = [reference.strip() for reference in pair.references]
            value[row] = max(
                greedy_match(encoded[text][1], weights[text], encoded[other][1], weights[other])[
                    column
                ]
                for other in references
            )
            cut[row] = not long.isdisjoint((text, *references))
        return RowScores(value, cut=cut)

    def _encode(self, texts: Sequence[str]) -> tuple[dict[str, Encoded], set[str]]:
        """Return ids and unit vectors of each text, and which of them were cut."""
        torch = require("torch", "hf")
        vectors_of: dict[str, Encoded] = {}
        long: set[str] = set()
        ordered = sorted(texts, key=len)  # little padding
        for batch, ids, mask, cut in text_batches(self.model, self.tokenizer, ordered):
            long |= {text for text, is_cut in zip(batch, cut, strict=True) if is_cut}
            with torch.inference_mode():
                states = self.model(ids, attention_mask=mask, output_hidden_states=True)
            # Half the memory of doubles: every token of every text is kept until the end.
            vectors = states.hidden_states[self.layer].float()
            vectors = torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()
            for text, row, here, vector in zip(batch, ids.tolist(), mask.tolist(), vectors,
                                               strict=True):  # fmt: skip
                size = sum(here)
                vectors_of[text] = (tuple(row[:size]), vector[:size])
        return vectors_of, long

    def _weights(
        self, references: Sequence[Sequence[str]], encoded: dict[str, Encoded]
    ) -> dict[str, Floats]:
        ends = {self.tokenizer.cls_token_id, self.tokenizer.sep_token_id}
        if not self.idf:
            return {
                text: np.array([float(token not in ends) for token in ids])
                for text, (ids, _) in encoded.items()
            }
        documents = [encoded[text.strip()][0] for texts in references for text in texts]
        counts = Counter(token for ids in documents for token in set(ids))

        total = len(documents) + 1
        return {
            text: np.array([math.log(total / (counts[token] + 1)) for token in ids])
            for text, (ids, _) in encoded.items()
        }


def _pick(transformers: Any, name: str) -> tuple[Any, ...]:
    model = transformers.AutoModel.from_pretrained(name, use_safetensors=True)
    # RoBERTa's words begin with their space, the first one, too; others do not know the option.
    spaced = model.config.model_type in ("roberta", "gpt2", "deberta")
    options = {"add_prefix_space": True} if spaced else {}
    return model.float(), transformers.AutoTokenizer.from_pretrained(name, **options)
