"""The words of an English caption that can be wrong, and variants with a neutral replacement.

A word's class is guessed from short lists, its ending and its neighbours: this needs no parser, and
a wrong guess costs only one clumsy variant. A word on no list is assumed to be a noun.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

KINDS = ("subject", "noun", "person", "modifier", "adjective", "number", "verb")
"""Kinds of words. The subject is the first noun of a caption, unless it is a person; a modifier is
a noun before another one."""

_ENGLISH = re.compile(r"\d|\w*[a-z]")
"""A number, or a word with a Latin letter: in other scripts a sentence may be one word."""
_CLOSED = ("determiner", "preposition", "be", "pronoun", "other")
"""Classes of words that are not examined."""
_IN_PHRASE = ("noun", "adjective", "number")
# Words, the marks between them, and both ends, so that every word has neighbours.
_TOKEN = re.compile(r"\A|\d+(?:[.,]\d+)*\w*|[^\W_]+(?:['’-][^\W_]+)*|\S|\Z")
_ADJECTIVE = re.compile(r"..(ful|ous|ish|less|able|ible|ic|al)$")


@dataclass(frozen=True)
class Span:
    """A word of a caption, ``caption[start:end]``, and its effect on the score.

    ``str()`` is the word, in brackets and with its effect if it is marked.

    Attributes:
        kind: One of ``KINDS``.
        variant: The caption with a neutral replacement for the word.
        effect: The caption's score minus that of the variant; NaN if one could not be judged.
        expected: The effect of a correct word of its kind, or 0 if that is not known.
        marked: Whether it is considered wrong.
        error: Why the effect is NaN: "not read" for words beyond the judge's limit.
    """

    start: int
    end: int
    text: str
    kind: str
    variant: str
    effect: float = math.nan
    expected: float = 0.0
    marked: bool = False
    error: str = ""

    @property
    def blame(self) -> float:
        """How much less it adds than a correct word of its kind."""
        return self.expected - self.effect

    @property
    def shown_effect(self) -> str:
        """The effect with two decimals; zero is always +0.00."""
        return f"{round(self.effect, 2) + 0.0:+.2f}"  # -0.0 + 0.0 is 0.0

    def __str__(self) -> str:
        return f"[{self.text} {self.shown_effect}]" if self.marked else self.text


def find_spans(caption: str) -> list[Span]:
    """List the words of a caption that describe the image, in order.

    >>> [(span.kind, span.variant) for span in find_spans("a red horse sitting")]
    [('adjective', 'a horse sitting'), ('subject', 'something sitting'), ('verb', 'a red horse')]
    """
    words = CaptionWords(caption)
    spans: list[Span] = []
    nouns = 0
    for i, kind in enumerate(words.classes):
        if kind in ("", *_CLOSED):
            continue
        if kind == "verb":
            variant = words.neutral_verb(i)
        elif kind == "number" and words.classes[i - 1] != "determiner":
            variant = words.instead(i, i, "some")
        elif kind == "noun" and words.classes[i + 1] != "noun":
            variant = words.neutral_noun(i)
            kind = "noun" if nouns else "subject"
            kind = "person" if _is_a(words.texts[i], "person", "people") else kind
            nouns += 1
        else:
            variant = words.without(i)
            kind = "modifier" if kind == "noun" else kind
        spans.append(Span(*words.tokens[i].span(), words.tokens[i][0], kind, variant))
    return spans


@cache
def _lists() -> Mapping[str, frozenset[str]]:
    text = files("discode").joinpath("data", "words.txt").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\n  ", " ").splitlines()
    lists = {name: words.split() for name, _, words in (line.partition(":") for line in lines)}
    lists["people"] += [f"{word}s" for word in lists["person"]]
    # catches, flies, plays
    stems = [re.sub(r"(s|sh|ch|x|o)$", r"\1e", verb) for verb in lists["verb"]]
    lists["verb with s"] = [re.sub(r"(?<=[^aeiou])y$", "ie", stem) + "s" for stem in stems]
    return {name: frozenset(words) for name, words in lists.items()}


def _is_a(word: str, *classes: str) -> bool:
    return any(word in _lists()[name] for name in classes)


def _is_plural(noun: str) -> bool:
    ends = noun.endswith("s") and not noun.endswith("ss")
    return _is_a(noun, "people", "plural") or (ends and not _is_a(noun, "singular"))


class CaptionWords:
    """The words of a caption in lower case with their classes, and variants of the caption."""

    def __init__(self, caption: str) -> None:
        self.caption = caption
        self.tokens = list(_TOKEN.finditer(caption))
        self.texts = [token[0].lower() for token in self.tokens]

    @cached_property
    def classes(self) -> list[str]:
        """The classes of all tokens, "" if they are not English words."""
        classes = [""]
        for i in range(1, len(self.texts)):
            classes.append(self._class(i, classes[-1]))
        return classes

    def _class(self, i: int, before: str) -> str:
        """Guess the class of a word, given that of the previous one."""
        if not _ENGLISH.match(self.texts[i]):
            return ""
        last, word, following = self.texts[i - 1 : i + 2]
        for name in _CLOSED:
            if _is_a(word, name):
                return name
        in_phrase = before in ("determiner", "adjective", "number")
        leads = following[:1].isalnum() and not _is_a(following, *_CLOSED)  # another open word
        if _is_a(word, "number") or word[0].isdigit():
            return "number"
        if _is_a(word, "adjective", "colour"):
            paired = following == "and" and _is_a(self.texts[i + 2], "colour")
            return "adjective" if leads or paired or not in_phrase else "noun"
        if word.endswith("ly") and len(word) > 4 and not _is_a(word, "not_adverb"):
            return "adjective"
        if len(word) > 3 and word.endswith(("ing", "ed")) and not _is_a(word, "not_verb"):
            return "adjective" if in_phrase and leads else "noun" if in_phrase else "verb"
        if _is_a(word, "past") and not in_phrase:
            return "verb"
        goes_on = _is_a(following, "determiner", "preposition") or _is_plural(last)
        if _is_a(word, "verb") and (last == "to" or (before == "noun" and goes_on)):
            return "verb"  # men run in
        if _is_a(word, "verb with s") and before in ("noun", "other", "pronoun"):
            return "verb"  # a dog runs
        return "adjective" if leads and _ADJECTIVE.search(word) else "noun"

    def instead(self, first: int, last: int, text: str) -> str:
        """Replace words of the caption by a text, with a suitable article."""
        if self.texts[first - 1] in ("a", "an"):
            first -= 1
            text = f"{'an' if text[0].lower() in 'aeiou' else 'a'} {text}"
        start, end = self.tokens[first].start(), self.tokens[last].end()
        if self.caption[start].isupper():
            text = text[:1].upper() + text[1:]
        return self.caption[:start] + text + self.caption[end:]

    def without(self, i: int) -> str:
        """Remove a word with its space; a caption's only word is replaced."""
        if sum(map(bool, self.classes)) == 1:
            return self.instead(i, i, "something")
        if self.classes[i + 1]:
            return self.instead(i, i + 1, self.tokens[i + 1][0])
        start, end = self.tokens[i].span()
        return self.caption[:start].rstrip() + self.caption[end:]

    def neutral_noun(self, i: int) -> str:
        """Replace a noun and its modifiers by something, someone, ...

        Of several nouns in a row only the last becomes a thing, if that is English ("a tennis
        thing"): the words before it may be correct.
        """
        word, first, many = self.texts[i], i, _is_plural(self.texts[i])
        someone = _is_a(word, "person", "people") and word not in ("person", "people")
        bare = (("thing", "things"), ("person", "people"))[someone][many]
        while self.classes[first - 1] in _IN_PHRASE:
            first -= 1
        determined = self.classes[first - 1] == "determiner"
        if self.classes[i - 1] == "noun" and (many or determined):
            return self.instead(i, i, bare)
        first -= determined
        if many:  # a pair of things
            return self.instead(first, i, bare if self.texts[first - 1] == "of" else f"some {bare}")
        return self.instead(first, i, "someone" if someone else "something")

    def neutral_verb(self, i: int) -> str:
        """Remove a verb, or replace it by "with" or "doing something"."""
        word, before, after = self.texts[i], self.classes[i - 1], self.classes[i + 1]
        has_object = after in (*_IN_PHRASE, "determiner", "pronoun")
        if before == "noun" or (before == "be" and after == "preposition"):
            return self.instead(i, i, "with") if has_object else self.without(i)
        form = "does" if _is_a(word, "verb with s") else "do" if _is_a(word, "verb") else "doing"
        return self.instead(i, i, f"{form} something{' with' if has_object else ''}")
