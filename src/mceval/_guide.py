"""The guide for participants, with examples; for the pages, crowd platforms and the card."""

from __future__ import annotations

from dataclasses import dataclass

from mceval._states import NOT_LOADED

DEFINITIONS = {
    "relevance": "It is about the important content of the image.",
    "descriptiveness": "It describes the content, with helpful detail.",
    "correctness": "Nothing in it is wrong or made up.",
    "fluency": "It reads well.",
}
"""Definitions of the criteria (:data:`~mceval.rules.CRITERIA`)."""
QUESTION = "Which caption is better overall?"
COMPARING = (
    "You see an image and two captions. Choose the one that is better overall. Four things count:"
)
ADVICE = (
    "A longer caption is not necessarily better. Detail does not make up for an error about "
    "something important."
)
SKIP_ADVICE = "If you really cannot decide, skip the image and give the reason."
"""Shown only if people may skip."""
REVISING = (
    "You see an image and one caption. Improve it: correct errors, add important content, and "
    "remove anything that cannot be seen."
)
REVISING_HINT = (
    "Correct errors, add important content that is missing, and remove anything that cannot be "
    "seen. If the caption is right as it is, keep it."
)

LOOKING = (
    "You see an image and a caption that another person improved, with their changes. Accept it if "
    "it is a good caption without errors. Otherwise reject it, and another person will improve the "
    "caption again."
)
LOOKING_QUESTION = "Is this caption right?"
LOOKING_HINT = (
    "Accept it if it has no errors and nothing important is missing; otherwise reject it."
)


@dataclass(frozen=True)
class ComparedExample:
    """An image of the package with two captions, in the order in which they are shown."""

    image: str
    alt: str
    captions: tuple[str, str]
    better: int
    """0 for the first, 1 for the second; it must differ between the examples."""
    why: str


@dataclass(frozen=True)
class RevisedExample:
    """A caption with one replaced part; ``parts``: start, removed, added, end."""

    image: str
    alt: str
    parts: tuple[str, str, str, str]
    why: str


COMPARED_EXAMPLES = (
    ComparedExample(
        "coffee.jpg",
        "A red cup of coffee on a red saucer, on a wooden table",
        (
            "a blue cup of coffee on a red saucer with a spoon on a wooden table",
            "a red cup of coffee on a red saucer with a spoon on a wooden table",
        ),
        1,
        "Both have the same detail, but the cup is not blue: correctness.",
    ),
    ComparedExample(
        "cat.jpg",
        "A close-up of a brown striped cat with green eyes",
        ("a close up of a brown striped cat with green eyes", "an animal is looking at something"),
        0,
        "Both are true, but one describes the image: descriptiveness and relevance.",
    ),
)
REVISED_EXAMPLE = RevisedExample(
    "city.jpg",
    "A city skyline with a tall tower beside the water",
    ("a city skyline with a tall ", "tree", "tower", " beside the water"),
    "One word was wrong; the rest is right and stays.",
)
SKIP_REASONS = {
    "compare": (
        "I cannot tell which is better",
        "I do not know what is shown",
        "I do not understand a caption",
    ),
    "revise": ("I do not know what is shown", "I do not understand the caption"),
    "look": ("I do not know what is shown", "I do not understand the caption"),
}
FLAG_REASONS = (
    NOT_LOADED,
    "The image is offensive or private",
    "A caption is offensive",
    "A caption names who wrote it",
)


def guide_text(*, instructions: str = "", look: bool = False, skips: bool = True) -> str:
    """Write the guide as plain text, for a dataset's card.

    ``look``: include second looks; ``skips``: people may skip.

    >>> guide_text().splitlines()[1]
    '- relevance: It is about the important content of the image.'
    """
    lines = [instructions] if instructions else []
    lines += [COMPARING, *(f"- {name}: {words}" for name, words in DEFINITIONS.items())]
    lines.append(f"{ADVICE} {SKIP_ADVICE}" if skips else ADVICE)
    for example in COMPARED_EXAMPLES:
        better, worse = example.captions[example.better], example.captions[1 - example.better]
        lines.append(f"Example: “{better}” is better than “{worse}”. {example.why}")
    start, gone, come, rest = REVISED_EXAMPLE.parts
    lines += [REVISING, f"Example: “{start}{gone}{rest}” becomes “{start}{come}{rest}”. "
              f"{REVISED_EXAMPLE.why}"]  # fmt: skip
    if look:
        lines.append(LOOKING)
    return "\n".join(lines)
