"""Import transformers, which hides its image processors where torchvision cannot be imported."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from discode.errors import require


def require_transformers(module: str = "transformers") -> Any:
    """Import transformers, or a module that imports it, or name the extra that brings it."""
    mend_torchvision()
    return require(module, "hf")


@cache
def mend_torchvision() -> object:
    """Make a torchvision built for CUDA importable with a torch that has none.

    Where torch has no CUDA, pip may still install torchvision's CUDA build. Its import fails: two
    operators are missing, which we never call, and transformers then hides all image processors.
    Returns what torch must not forget.
    """
    spec = PathFinder.find_spec("torchvision")  # not by an import hook that calls this function
    if spec is None or spec.origin is None or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    version = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    if torch.version.cuda is not None or "+cu" not in version:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
