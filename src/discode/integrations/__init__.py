"""Drop-ins for the evaluation code that people have: pycocoevalcap, torchmetrics, evaluate.

pandas and ``datasets`` need no class of their own: ``Judge.score_frame``, ``Scores.to_pandas`` and
``Judge.map_fn``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from discode._extras import mend_torchvision
from discode.errors import require
from discode.integrations._coco import CocoScorer

if TYPE_CHECKING:
    from discode.integrations._evaluate_module import DiscodeEvaluation
    from discode.integrations._torch_metric import DiscodeScore

__all__ = ["CocoScorer", "DiscodeEvaluation", "DiscodeScore"]

_MODULES = {  # where a class is, and the package that its module imports
    "DiscodeEvaluation": ("_evaluate_module", "evaluate"),
    "DiscodeScore": ("_torch_metric", "torchmetrics"),
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for, or name the extra that it wants."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _MODULES[name]
    mend_torchvision()
    require(package, package)
    return getattr(import_module(f"{__name__}.{module}"), name)
