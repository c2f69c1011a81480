"""Advise how to run a model on a machine, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from discode._extras import require_transformers
from discode.backends._local import internvl, memory
from discode.backends._local.catalog import CATALOG
from discode.backends._local.check import COMMON, opening
from discode.backends._local.load import describe_config
from discode.errors import require

USABLE = 0.9
"""The share of a GPU's memory that a model may use."""
CACHED_TOKENS = 40_960
"""Tokens whose keys and values should fit besides the weights: two batches of images."""
PARALLEL = (2, 4, 8, 16)
"""Numbers of GPUs that share a model."""
FP8, FOUR_BITS = 1.02, 0.56
"""Bytes per weight, scales included."""


@dataclass(frozen=True)
class Machine:
    """GPUs of one size: their number, and the memory of each in bytes. No GPU has 0 bytes."""

    gpus: int
    bytes: float
    half: str = "bfloat16"
    """The type of 16 bits that they compute with."""

    @classmethod
    def here(cls, gpu_memory: float | None = None) -> Machine:
        """This machine; with ``gpu_memory`` in gigabytes, one with GPUs of that size."""
        torch = require("torch", "hf")
        count = torch.cuda.device_count()
        if gpu_memory is not None:
            return cls(max(1, count), gpu_memory * 1e9)
        if not count:
            return cls(0, 0.0)
        size = min(torch.cuda.get_device_properties(i).total_memory for i in range(count))
        old = torch.cuda.get_device_capability(0) < (8, 0)
        return cls(count, float(size), "float16" if old else "bfloat16")

    def __str__(self) -> str:
        if not self.gpus:
            return "no GPU"
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} with {memory.gigabytes(self.bytes)}"


@dataclass(frozen=True)
class Needs:
    """What a model needs: parameters, bytes per parameter as stored, and bytes per cached token."""

    parameters: float
    stored: float
    cache: float
    heads: int

    def bytes(self, per_weight: float) -> float:
        """Memory with weights of this size, and a cache for two batches."""
        return self.parameters * per_weight + CACHED_TOKENS * self.cache


def advise(name: str, revision: str | None, machine: Machine) -> dict[str, str]:
    """Describe in words what a hub name or a folder needs, and how to run it on a machine."""
    with opening(name, revision) as (folder, _):
        settings = memory.read_settings(folder / "config.json")
        if internvl.is_original(settings):
            config, _ = internvl.open_original(name, folder, settings)
        else:
            config = describe_config(str(folder), COMMON)
    needs = needs_of(config, settings)
    sizes = (("16 bit", 2.0), ("fp8", FP8), ("4 bit", FOUR_BITS))
    weights = [f"{memory.gigabytes(needs.parameters * size)} in {kind}" for kind, size in sizes]
    if needs.stored < 2:
        weights = [f"{memory.gigabytes(needs.parameters * needs.stored)} as stored"]
    return {
        "model": f"{name} ({config.model_type}), {needs.parameters / 1e9:.1f} B parameters",
        "weights": ", ".join(weights),
        "cache": f"{needs.cache / 1e6:.2f} MB per token, {memory.gigabytes(needs.bytes(0))} for "
        f"{CACHED_TOKENS:,} tokens",
        "machine": str(machine),
        **{title: way for title, way in ways(name, needs, machine).items() if way},
    }


def advise_all(machine: Machine) -> dict[str, str]:
    """What to give as --model for each listed model, called NAME, by its number of parameters.

    >>> advise_all(Machine(1, 80e9))["Qwen/Qwen2-VL-72B-Instruct"]
    'NAME -M quantize=4bit'
    """
    found = {}
    for row in CATALOG:
        if row.opens:
            cache = 100e3 + 3e3 * row.billions  # with grouped queries
            way = ways("NAME", Needs(1e9 * row.billions, 2.0, cache, 16), machine)["advice"]
            code = " -M trust_remote_code=true" if row.remote and "endpoint:" not in way else ""
            found[row.hub] = way.partition(": ")[0].removeprefix("--model ") + code
    return found


def ways(name: str, needs: Needs, machine: Machine) -> dict[str, str]:
    """How to run a model on one GPU, on several, and elsewhere; "advice" is what to do here.

    >>> needs = Needs(73e9, 2.0, 327_680.0, 64)
    >>> ways("A/B", needs, Machine(1, 80e9))["advice"]
    '--model A/B -M quantize=4bit'
    >>> ways("A/B", needs, Machine(4, 80e9))["advice"]
    '--model vllm:A/B -M tensor_parallel_size=4'
    """
    room = USABLE * machine.bytes
    dtype = "" if machine.half == "bfloat16" else f" -M dtype={machine.half}"
    server = "--model endpoint:NAME --base-url URL: a server on another machine (vllm serve NAME)"
    if not machine.gpus:
        small = needs.parameters < 3e9
        here = f"--model {name} -M dtype=float32 (slow)" if small else server
        return {"advice": here, "elsewhere": server if small else ""}
    one, several = "", ""
    if needs.bytes(needs.stored) <= room:
        model = name if needs.stored == 2 else f"vllm:{name}"
        one = f"--model {model}{dtype}"
    elif needs.stored == 2 and needs.bytes(FOUR_BITS) <= room:
        kind = "fp8" if needs.bytes(FP8) <= room and not dtype else "4bit"
        one = f"--model {name} -M quantize={kind}{dtype}"
    for count in PARALLEL:
        if needs.heads % count == 0 and needs.bytes(needs.stored) / count <= room:
            several = f"--model vllm:{name} -M tensor_parallel_size={count}{dtype}"
            break
    whole = bool(one) and "quantize" not in one
    split = bool(several) and count <= machine.gpus
    other = f"--model vllm:{name}{dtype}"
    return {
        "on one GPU": one or "does not fit",
        "on several": "" if whole else several,
        "few captions per image": other if whole and one != other else "",
        "elsewhere": "" if one or split else server,
        "advice": several if split and not whole else one or server,
    }


def needs_of(config: Any, settings: dict[str, Any]) -> Needs:
    """Count a model's parameters and what it keeps per token; it has no weights for that."""
    torch, transformers = require("torch", "hf"), require_transformers()
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    text = config.get_text_config()
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    quantised = settings.get("quantization_config")
    stored = 2.0
    if isinstance(quantised, dict):
        bits = quantised.get("bits") or (4 if quantised.get("load_in_4bit") else 8)
        stored = FOUR_BITS if bits == 4 else FP8
    parameters = float(sum(weight.numel() for weight in model.parameters()))
    return Needs(parameters, stored, 4.0 * text.num_hidden_layers * groups * width, heads)
