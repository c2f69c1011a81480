"""The vision-language models that ``discode models`` lists: the paper's ten, and others in use.

A row is documentation, not a condition. ``packed`` says whether captions of an image share its
computation; the check when a model is opened decides.
"""

from __future__ import annotations

from dataclasses import dataclass

TINY = "tiny"
"""A tiny checkpoint of the same class, in the layout of the hub, was run, packed and not."""
STAND_IN = "stand-in"
"""Tiny code with the same interface was run."""
UNTRIED = ""


@dataclass(frozen=True)
class HubModel:
    """A model of the hub; nothing was ever run with its real weights."""

    hub: str
    billions: float
    kind: str
    """transformers' model type."""
    packed: bool = True
    remote: bool = False
    """Whether it opens only with code of its own, which an adapter calls."""
    paper: str = ""
    """What the paper calls it, if it is one of its ten."""
    tested: str = TINY
    note: str = ""

    @property
    def memory(self) -> float:
        """Gigabytes of the weights in bfloat16."""
        return 2 * self.billions

    @property
    def memory_4bit(self) -> float:
        """Gigabytes of the weights in 4 bit, scales included."""
        return 0.56 * self.billions


TRANSLATED = "opens in its original layout; its own code is not run"
NO_ADAPTER = "does not open: its own code, without an adapter here"
CATALOG = (
    HubModel("llava-hf/llama3-llava-next-8b-hf", 8.4, "llava_next", paper="LLaVA-NeXT-8B"),
    HubModel("llava-hf/llava-v1.6-vicuna-13b-hf", 13.4, "llava_next", paper="LLaVA-NeXT-13B"),
    HubModel("llava-hf/llava-v1.6-34b-hf", 34.8, "llava_next", paper="LLaVA-NeXT-34B"),
    HubModel(
        "llava-hf/llava-next-72b-hf", 73.3, "llava_next", paper="LLaVA-NeXT-72B",
        note="the paper's default",
    ),
    HubModel(
        "OpenGVLab/InternVL2_5-8B", 8.1, "internvl", paper="InternVL-2.5-8B",
        note=f"{TRANSLATED}; so do 1B, 2B, 4B, 26B and 38B",
    ),
    HubModel(
        "OpenGVLab/InternVL2_5-78B", 78.4, "internvl", paper="InternVL-2.5-78B",
        note=TRANSLATED,
    ),
    HubModel("Qwen/Qwen2-VL-7B-Instruct", 8.3, "qwen2_vl", paper="Qwen2-VL-7B-Instruct"),
    HubModel("Qwen/Qwen2-VL-72B-Instruct", 73.4, "qwen2_vl", paper="Qwen2-VL-72B-Instruct"),
    HubModel(
        "zai-org/cogvlm2-llama3-chat-19B", 19.5, "cogvlm2", packed=False, remote=True,
        paper="CogVLM2-Chat-19B", tested=STAND_IN, note="its code needs xformers and triton",
    ),
    HubModel(
        "openbmb/MiniCPM-V-2_6", 8.1, "minicpmv", remote=True, paper="MiniCPM-V-2.6",
        tested=STAND_IN,
    ),
    HubModel("llava-hf/llava-1.5-7b-hf", 7.1, "llava"),
    HubModel("llava-hf/llava-1.5-13b-hf", 13.4, "llava", note="FLEUR's own model"),
    HubModel("Qwen/Qwen2.5-VL-7B-Instruct", 8.3, "qwen2_5_vl"),
    HubModel("Qwen/Qwen3-VL-8B-Instruct", 8.8, "qwen3_vl"),
    HubModel(
        "OpenGVLab/InternVL2_5-8B-MPO-hf", 8.1, "internvl",
        note="InternVL2_5-8B after preference training, converted already",
    ),
    HubModel("OpenGVLab/InternVL3-8B-hf", 7.9, "internvl"),
    HubModel("OpenGVLab/InternVL3-8B", 7.9, "internvl", note=TRANSLATED),
    HubModel("google/gemma-3-12b-it", 12.2, "gemma3"),
    HubModel("HuggingFaceTB/SmolVLM2-2.2B-Instruct", 2.2, "smolvlm"),
    HubModel("HuggingFaceM4/Idefics3-8B-Llama3", 8.5, "idefics3"),
    HubModel("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24.0, "mistral3"),
    HubModel(
        "zai-org/GLM-4.1V-9B-Thinking", 10.3, "glm4v", note="thinks first: expect 'generated'",
    ),
    HubModel("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.0, "llava_onevision"),
    HubModel(
        "microsoft/Phi-4-multimodal-instruct", 5.6, "phi4mm", packed=False, tested=UNTRIED,
        note=NO_ADAPTER,
    ),
    HubModel(
        "allenai/Molmo-7B-D-0924", 8.0, "molmo", packed=False, tested=UNTRIED, note=NO_ADAPTER,
    ),
    HubModel("CohereLabs/aya-vision-8b", 8.6, "aya_vision"),
    HubModel("google/paligemma2-10b-mix-448", 9.7, "paligemma", packed=False, note="a prefix-LM"),
    HubModel("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108.6, "llama4"),
    HubModel(
        "LiquidAI/LFM2-VL-1.6B", 1.6, "lfm2_vl", packed=False, note="convolutions carry state",
    ),
)  # fmt: skip
