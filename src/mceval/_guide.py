"""What people are told: what counts, with examples; in the pages, on a platform, in the card."""

from __future__ import annotations

from dataclasses import dataclass

from mceval._states import NOT_LOADED

DEFINITIONS = {
    "relevance": "It is about what matters in the image.",
    "descriptiveness": "It says what is there, with detail that helps.",
    "correctness": "Nothing in it is wrong or made up.",
    "fluency": "It reads well.",
}
"""What each criterion means (:data:`~mceval.rules.CRITERIA`)."""
QUESTION = "Which caption is better, all in all?"
COMPARING = (
    "You see an image and two captions. Say which one is better, all in all. Four things count:"
)
ADVICE = (
    "Longer is not better in itself. Where a caption is wrong about something that matters, detail "
    "does not save it."
)
SKIP_ADVICE = "If you truly cannot tell, skip and say so."
"""Only where people may skip."""
REVISING = (
    "You see an image and one caption. Make it the caption you would have liked to read: correct "
    "what is wrong, add what matters, take out what cannot be seen."
)
REVISING_HINT = (
    "Correct what is wrong, add what matters and is missing, leave out what cannot be seen. If it "
    "is right as it is, keep it."
)

LOOKING = (
    "You see an image and a caption that somebody else improved, with what they changed. Accept it "
    "if you would have liked to read it and nothing in it is wrong; otherwise reject it, and "
    "another person improves the caption once more."
)
LOOKING_QUESTION = "Is this caption right?"
LOOKING_HINT = (
    "Accept it if nothing in it is wrong and nothing that matters is missing; otherwise reject it."
)


@dataclass(frozen=True)
class ComparedExample:
    """An image of the package with two captions, in the order in which they are shown."""

    image: str
    alt: str
    captions: tuple[str, str]
    better: int
    """0 for the first, 1 for the second. The examples must not all have it in one place."""
    why: str


@dataclass(frozen=True)
class RevisedExample:
    """A caption of which one part was replaced: what stays, what went, what came, what stays."""

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
        "The same detail, but the cup is not blue: correctness.",
    ),
    ComparedExample(
        "cat.jpg",
        "A close-up of a brown striped cat with green eyes",
        ("a close up of a brown striped cat with green eyes", "an animal is looking at something"),
        0,
        "Both are true, but one says what there is to see: descriptiveness and relevance.",
    ),
)
REVISED_EXAMPLE = RevisedExample(
    "city.jpg",
    "A city skyline with a tall tower beside the water",
    ("a city skyline with a tall ", "tree", "tower", " beside the water"),
    "One word was wrong; the rest was right and stays.",
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
    """Return the guide as plain text, for a dataset's card.

    ``look``: with the second look; ``skips``: people may skip.

    >>> guide_text().splitlines()[1]
    '- relevance: It is about what matters in the image.'
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
