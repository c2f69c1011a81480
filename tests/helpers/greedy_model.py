"""What vLLM does, slowly: greedy tokens, and log-probabilities of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image

from discode.backends._local.backend import Local
from tests.helpers.tiny_lvlms import ask


class GreedyModel:
    """A local model that writes one token at a time."""

    def __init__(self, local: Local) -> None:
        self.model, self.processor = local.runner.model, local.runner.processor
        self.tokenizer = self.processor.tokenizer
        self.encode = local.runner.vocabulary.encode

    def write(
        self,
        image: Image.Image,
        text: str,
        begun: str,
        most: int,
        ids: Sequence[int] | None,
        top: int,
    ) -> Iterator[dict[int, float]]:
        """Yield log-probabilities at each position, first that of the token written.

        The others are those of ``ids``, or else of the ``top`` likeliest.
        """
        inputs = dict(ask(self.processor, image, text))
        if begun:
            whole = self.encode(text, begun)
            self._append(inputs, torch.tensor([whole[len(self.encode(text)) :]]))
        with torch.no_grad():
            for _ in range(most):
                logits = self.model(**inputs).logits[0, -1].double()
                logp = torch.log_softmax(logits, -1)
                best = int(logp.argmax())
                wanted = [best, *map(int, ids or logp.topk(top).indices)]
                yield {i: float(logp[i]) for i in wanted}
                if best == self.tokenizer.eos_token_id:
                    break
                self._append(inputs, torch.tensor([[best]]))

    def text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def _append(self, inputs: dict[str, Any], ids: Any) -> None:
        inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
