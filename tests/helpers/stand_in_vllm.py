"""A module in the place of vLLM: the part of its API that is used, over a tiny local model.

Names, arguments and results are those of vLLM 0.26: ``LLM.chat`` with conversations and one
``SamplingParams`` for each, and ``RequestOutput`` with a mapping of ids per position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from discode.backends._local.backend import Local
from tests.helpers.greedy_model import GreedyModel


@dataclass
class EngineArgs:
    model: str = ""
    dtype: str = "auto"
    seed: int = 0
    revision: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    limit_mm_per_prompt: dict[str, int] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None

    @property
    def num_logprobs(self) -> int:
        return len(self.logprob_token_ids or ()) if self.logprobs is None else self.logprobs


@dataclass
class OldSamplingParams:
    """Those of a version without ``logprob_token_ids``."""

    temperature: float = 1.0
    max_tokens: int = 16
    logprobs: int | None = None


class ValidationError(ValueError):
    """What pydantic raises: each error has a line of its own."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("max_model_len",), "msg": "Input should be a valid integer"}]


class LLM:
    """An engine; ``started`` are the arguments of all, ``asked`` the conversations of each call."""

    started: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[list[Any]]] = []
    settings: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, model: str, **options: Any) -> None:
        config = json.loads(Path(model, "config.json").read_text())
        if config.get("vllm") == "unknown":
            raise ValueError("Model architectures are not supported for now.")
        if isinstance(options.get("max_model_len"), str):
            raise ValidationError("1 validation error for ModelConfig\nmax_model_len\n  ...")
        self.started.append({"model": model, **options})
        self.most = options.get("max_model_len") or 1 << 20
        self.model = GreedyModel(Local(model, device="cpu"))
        cache = SimpleNamespace(num_gpu_blocks=1024, block_size=16)
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))

    def get_tokenizer(self) -> Any:
        return self.model.tokenizer

    def chat(
        self, messages: list[Any], sampling_params: list[Any], use_tqdm: bool = True, **more: Any
    ) -> list[Any]:
        self.asked.append(messages)
        self.settings.append(more)
        rows = zip(messages, sampling_params, strict=True)
        prompts = [self.model.encode(turn[0]["content"][1]["text"]) for turn in messages]
        if longest := [len(ids) for ids in prompts if len(ids) > self.most]:
            raise ValueError(
                f"The decoder prompt (length {max(longest)}) is longer than the maximum model "
                f"length of {self.most}. Make sure that `max_model_len` is no smaller."
            )
        return [
            self._output(ids, turn, params, more)
            for ids, (turn, params) in zip(prompts, rows, strict=True)
        ]

    def _output(self, prompt: list[int], turn: list[Any], params: Any, more: dict[str, Any]) -> Any:
        (image, text), begun = turn[0]["content"], ""
        assert image["type"] == "image_pil"
        assert image["uuid"]
        if more.get("continue_final_message"):
            assert more["add_generation_prompt"] is False
            begun = turn[1]["content"]
        ids = getattr(params, "logprob_token_ids", None)
        if ids and params.num_logprobs != len(ids):
            raise ValueError("When both are set, logprobs must equal len(logprob_token_ids).")
        places = list(
            self.model.write(
                image["image_pil"], text["text"], begun, params.max_tokens, ids, params.logprobs
            )
        )
        written = [next(iter(likely)) for likely in places]
        logprobs = [
            {
                i: SimpleNamespace(logprob=p, decoded_token=self.model.text(i))
                for i, p in each.items()
            }
            for each in places
        ]
        said = self.model.tokenizer.decode(written, skip_special_tokens=True)
        answer = SimpleNamespace(text=said, token_ids=written, logprobs=logprobs)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[answer])


def stand_in() -> Any:
    """The module, with an engine class of its own."""
    module: Any = ModuleType("vllm")
    module.EngineArgs, module.SamplingParams = EngineArgs, SamplingParams
    module.LLM = type("LLM", (LLM,), {"started": [], "asked": [], "settings": []})
    return module
