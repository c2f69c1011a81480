"""Check that a model's weights fit into memory, before loading gets the process killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from discode.errors import BackendError, InputError, require

BYTES_PER_WEIGHT = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "4bit": 0.5,
    "8bit": 1.0,
    "fp8": 1.0,
}
"""Bytes per loaded weight, without the scales of quantised ones."""
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
"""safetensors' names for types that are converted on loading."""


def read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {why}") from None


def weight_files(folder: Path) -> list[Path]:
    """List the files that transformers would load: some folders contain the weights twice."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            names = set(read_settings(index)["weight_map"].values())
        except (KeyError, AttributeError) as error:
            raise InputError(f"cannot read {index}: {error!r}") from None
        return sorted(folder / name for name in names)
    return sorted(folder.glob("*.safetensors"))


def weight_bytes(files: Iterable[Path], kind: str) -> float:
    """Compute the size of the weights as ``kind``, from the headers of the files.

    Floats are converted on loading; other types (a quantised checkpoint) are not.
    """
    total = 0.0
    safetensors = require("safetensors", "hf")
    for path in files:
        try:
            with safetensors.safe_open(path, "pt") as file:
                for part in map(file.get_slice, file.keys()):
                    stored = part.get_dtype()  # "I64", "F8_E4M3", "BOOL"
                    bits = re.search(r"\d+", stored)
                    size = int(bits[0]) / 8 if bits else 1.0
                    size = BYTES_PER_WEIGHT[kind] if stored in FLOAT_TYPES else size
                    total += prod(part.get_shape()) * size
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(f"cannot read {path}: {error}; download it again") from None
    return total


def free_bytes(device: str) -> int | None:
    """The free memory of a device; None if it is not known."""
    if device.startswith("cuda"):
        torch = require("torch", "hf")
        return int(torch.cuda.mem_get_info(device)[0])
    if device != "cpu":
        return None
    system, container = require("psutil", "hf").virtual_memory().available, _container_free()
    return int(system if container is None else min(system, container))


def check_fits(name: str, needed: float, kind: str, device: str) -> None:
    """Raise if the weights alone exceed a device's free memory."""
    free = free_bytes(device)
    if free is not None and needed > free:
        smaller = "dtype='bfloat16', " if kind == "float32" else ""
        smaller += "quantize='4bit', " if kind != "4bit" else ""
        raise BackendError(
            f"{name} needs {gigabytes(needed)} for its weights in {kind}, but {device} has "
            f"{gigabytes(free)} free; try {smaller}device_map='auto' (several GPUs) or a smaller "
            "model"
        )


def tokens_that_fit(config: Any, size: int, device: Any) -> int:
    """Estimate how many tokens fit into a GPU's free memory; a constant on other devices.

    Each token keeps its keys and values in every layer and passes through the widest layer; at most
    one in eight passes through the head in float32. If this is too optimistic, chunks are halved.
    """
    torch = require("torch", "hf")
    if device.type != "cuda":
        return 1 << 16
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    cached = 2 * config.num_hidden_layers * groups * width
    passing = 8 * config.hidden_size + 3 * config.intermediate_size
    return int(0.8 * free / (size * (cached + passing) + config.vocab_size))


def gigabytes(size: float) -> str:
    """Format a size in bytes.

    >>> gigabytes(16.2e9)
    '16.2 GB'
    """
    return f"{size / 1e9:.1f} GB" if size > 1e8 else f"{size / 1e6:.2f} MB"


def _container_free(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The memory left within a container's limit; the file cache counts as free."""
    try:
        limit, used = (
            int((folder / f"memory.{name}").read_text(encoding="ascii"))
            for name in ("max", "current")
        )
        stat = (folder / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # "max": there is no limit
        return None
    cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
    return limit - used + cached
