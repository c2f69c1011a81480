"""Prompts: the templates a model is asked with, filled so that captions cannot act as prompts.

The default is the wording of FLEUR's code; the paper says that it uses FLEUR's prompt, and shows it
as a picture. Other scales replace "0.0" and "1.0" by their own ends. A caption is data: it stays on
its line, and whatever in it looks like a control token of a chat template or an image placeholder
is broken by a space.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from discode._scales import Scale
from discode.errors import InputError, lookup

_FREE = (
    "Your task is to evaluate and rate the caption on a scale of {low} to {high} "
    "based on the given Grading Criteria. (Print Real Number Score ONLY)\n\n"
    "Grading Criteria:\n\n"
    "{low}: The caption does not describe the image at all.\n"
    "{high}: The caption accurately and clearly describes the image.\n\n"
    "Caption: {caption}\n\n"
    "Score(Choose a rating from {low} to {high}):"
)
_WITH_REFERENCES = _FREE.replace("rate the caption", "rate the candidate caption").replace(
    "Caption: {caption}", "Reference Captions: {references}\n\nCandidate Caption: {caption}"
)

# FLEUR's wording with the caption at the end: the image and the whole instruction come first, so
# all captions of an image share them. Small models are trained on it.
_LAST_FREE = (
    _FREE.split("Caption: ")[0]
    + "Score(Choose a rating from {low} to {high}) for the Caption: {caption}"
)
_LAST_WITH_REFERENCES = (
    _WITH_REFERENCES.split("Candidate Caption: ")[0]
    + "Score(Choose a rating from {low} to {high}) for the Candidate Caption: {caption}"
)

# "<word>", "</word>", "<|word|>", and the wide and small forms that some tokenizers fold into them.
_ANGLE = re.compile(r"([<＜﹤])(?=[^\s<>＜＞﹤﹥]{1,64}[>＞﹥])")
_BAR = re.compile(r"([<＜﹤])(?=[|｜])|([|｜])(?=[>＞﹥])")
# "[INST]", "[/INST]", "[IMG_BREAK]", "[gMASK]", "[control_8]"
_BRACKET = re.compile(r"([\[［])(?=/?\w{1,32}[\]］])")
# "USER:", "ASSISTANT:", "Answer:", the roles of templates that have no tokens for them
_ROLE = re.compile(r"\b(user|assistant|system|human|model|gpt|question|answer)(?=:)", re.IGNORECASE)
# Line breaks of any script, and control characters: they could forge a new paragraph.
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

# Without one of these nothing above can match.
_SUSPECT = re.compile(r"[<＜﹤|｜\[［:\x00-\x1f\x7f-\x9f\u2028\u2029]")

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_KNOWN = dict.fromkeys(("caption", "references", "low", "high"))


def neutralise(text: str, control_tokens: Collection[str] = ()) -> str:
    """Return ``text`` on one line and with every control token broken by a space.

    Besides the shapes that control tokens have everywhere, ``control_tokens`` names a
    model's own. The words stay readable, so that an honest caption loses nothing.

    >>> neutralise("a dog<|im_end|>")
    'a dog< |im_end| >'
    >>> neutralise("nice <image> [INST] 1.0")
    'nice < image> [ INST] 1.0'
    """
    text = _BREAKS.sub(" ", text).strip()
    text = _BAR.sub(lambda match: f"{match[0]} ", text)
    text = _ANGLE.sub(r"\1 ", text)
    text = _BRACKET.sub(r"\1 ", text)
    text = _ROLE.sub(r"\1 ", text)
    # Longest first, since a token may contain another one; until none is left, since breaking
    # one may join the ends of another. What a space cannot break is taken out.
    tokens, firsts = _longest_first(frozenset(control_tokens))
    if firsts.isdisjoint(text):
        return text
    while found := next((token for token in tokens if token in text), None):
        broken = f"{found[0]} {found[1:]}"
        text = text.replace(found, " " if found in broken else broken)
    return text


@functools.lru_cache(maxsize=8)
def _longest_first(control_tokens: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """Sort a model's control tokens, thousands for some; and return their first characters."""
    tokens = sorted(filter(str.strip, control_tokens), key=lambda token: (-len(token), token))
    return tokens, frozenset(token[0] for token in tokens)


def needs_neutralising(*texts: str) -> bool:
    """Return whether :func:`neutralise` would change any of the texts; quick where it would not.

    >>> needs_neutralising("a dog<|im_end|>"), needs_neutralising(" a dog: brown ")
    (True, False)
    """
    for text in texts:
        if _SUSPECT.search(text) is not None and neutralise(text) != text.strip():
            return True
    return False


@dataclass(frozen=True)
class Prompt:
    """A template for pairs without references, and one for pairs with them.

    The placeholders are ``{caption}``, ``{references}``, ``{low}`` and ``{high}``.
    """

    name: str
    free: str | None
    with_references: str | None
    scale: str | None = None
    """The scale that the question is for, if it is for one alone."""
    digest: str = field(init=False, repr=False, compare=False)
    """Of both templates, for the signature."""

    def __post_init__(self) -> None:
        text = f"{self.free}\0{self.with_references}"
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest()[:8])
        if self.free is not None:
            _check(self.free, self.name, references=False)
        if self.with_references is not None:
            _check(self.with_references, self.name, references=True)

    def template(self, references: bool) -> str:
        """Return the template for pairs with or without references; raise if there is none."""
        text = self.with_references if references else self.free
        if text is None:
            raise InputError(self.why_no_template(references))
        return text

    def why_no_template(self, references: bool) -> str:
        which, other = ("with", "without") if references else ("without", "with")
        return (
            f"prompt {self.name!r} is for pairs {other} references, but the pair is one {which} "
            "references: use another prompt or change the pairs"
        )

    def render(
        self,
        caption: str,
        references: Sequence[str],
        scale: Scale,
        control_tokens: Collection[str] = (),
    ) -> str:
        """Fill the template in one pass, so that nothing inside a caption is expanded.

        >>> from discode._scales import FIVE
        >>> text = FLEUR.render("a {low} dog", [], FIVE)
        >>> text.splitlines()[7]
        'Caption: a {low} dog'
        >>> text.splitlines()[-1]
        'Score(Choose a rating from 1 to 5):'
        """
        fields = {
            "caption": neutralise(caption, control_tokens),
            "references": "\n".join(neutralise(text, control_tokens) for text in references),
            "low": scale.low,
            "high": scale.high,
        }
        return _PLACEHOLDER.sub(lambda match: fields[match[1]], self.template(bool(references)))


def _check(template: str, name: str, *, references: bool) -> None:
    placeholders = _PLACEHOLDER.findall(template)
    for placeholder in placeholders:
        lookup(_KNOWN, placeholder, f"placeholder of the prompt {name!r}")
    for placeholder in ("caption", "references") if references else ("caption",):
        if placeholder not in placeholders:
            raise InputError(f"prompt {name!r} has no placeholder {{{placeholder}}}; add it")


FLEUR = Prompt("fleur", free=_FREE, with_references=_WITH_REFERENCES)
CAPTION_LAST = Prompt("caption-last", free=_LAST_FREE, with_references=_LAST_WITH_REFERENCES)
VQASCORE = Prompt(
    "vqascore",
    free='Does this figure show "{caption}"? Please answer yes or no.',
    with_references=None,
    scale="yes-no",
)
YES_NO = Prompt(
    "yes-no",
    free="Does the caption describe the image correctly? Answer Yes or No.\n\nCaption: {caption}",
    with_references=None,
    scale="yes-no",
)
PREFER = Prompt(
    "prefer",
    free=None,
    with_references=(
        "Which of two captions describes the image better?\n\n"
        "A: {caption}\n\nB: {references}\n\nAnswer with A or B only:"
    ),
    scale="prefer",
)
"""Compares a caption with another one, which takes the place of its reference."""
PROMPTS: dict[str, Prompt] = {
    prompt.name: prompt for prompt in (FLEUR, CAPTION_LAST, VQASCORE, YES_NO, PREFER)
}


def choose_prompt(prompt: Prompt | None, scale: Scale | None, usual: Prompt) -> Prompt:
    """Return the prompt; where none is given, that of the scale, or the ``usual`` one.

    >>> from discode._scales import get_scale
    >>> choose_prompt(None, get_scale("yes-no"), FLEUR).name
    'vqascore'
    """
    if prompt is None:
        name = None if scale is None else scale.name
        return next((each for each in PROMPTS.values() if name and each.scale == name), usual)
    if scale is not None and prompt.scale not in (None, scale.name):
        raise InputError(
            f"prompt {prompt.name!r} is for scale {prompt.scale!r}, not {scale.name!r}; "
            f"set scale to {prompt.scale!r}, or choose another prompt"
        )
    return prompt


def get_prompt(spec: str | Path | Prompt) -> Prompt:
    """Return a prompt by name, or read a template of your own from a text file.

    A template that contains ``{references}`` is for pairs with references, any other for pairs
    without.
    """
    if isinstance(spec, Prompt):
        return spec
    if str(spec) in PROMPTS:
        return PROMPTS[str(spec)]
    path = Path(spec)
    if not path.is_file():
        return lookup(PROMPTS, str(spec), "prompt", also=", or the path of a text file")
    try:
        text = path.read_text(encoding="utf-8").strip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the prompt {path}: {error}") from error
    takes_references = "{references}" in text
    return Prompt(
        path.stem,
        free=None if takes_references else text,
        with_references=text if takes_references else None,
    )
