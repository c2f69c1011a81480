"""Notes on the judge for people who read its scores."""

from __future__ import annotations

from typing import Any

from discode._judge import Judge
from discode.backends._embedded.backend import MODEL, SHA256

# Of docs/MODEL_CARD.md, mean over Flickr8k's and COCO's dev images; a test compares them.
OWN, RANDOM = 0.71, 0.10
EMBEDDED = (
    "A small judge for a first look at everyday photographs; every eighth wrong colour or "
    f"number escapes it. People's captions of a photograph average {OWN} (37 to 50 % of them are "
    f"above 0.8), captions of other photographs {RANDOM:.2f}."
)
OTHERS = (
    "Which score is good depends on the model and on the method. Compare captions of one image "
    "with each other, or with some that you rated yourself."
)


def describe_judge(judge: Judge, method: str) -> dict[str, Any]:
    """Return a note on the judge, and the typical scores of good and of random captions if known.

    They are known only for the shipped model with the default decoder.

    >>> from discode._judge import load
    >>> describe_judge(load("embedded"), "discode")["typical"]
    {'own': 0.71, 'random': 0.1}
    """
    identity = judge.backend.identity
    shipped = identity.model == MODEL and identity.revision.endswith(SHA256[:8])
    if shipped and method == "discode":
        return {"note": EMBEDDED, "typical": {"own": OWN, "random": RANDOM}}
    return {"note": OTHERS, "typical": None}
