"""Check the texts that people type, and the names and captions that organisers give."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from discode.errors import InputError
from mceval.rules import normalized

LONGEST = 4000
"""Characters of a revised caption or a reason."""


def check_text(text: str | None, what: str) -> str:
    """Return a text with single spaces, or raise and say what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{what} must be a text with something in it")
    if len(text) > LONGEST:
        raise InputError(f"{what} must be at most {LONGEST} characters, not {len(text)}")
    spaced = " ".join(text.split())
    bad = next(filter(_is_unsafe, spaced), None)
    if bad is not None:
        raise InputError(f"{what} holds an invalid character: U+{ord(bad):04X}")
    return spaced


def first_few(names: Sequence[str]) -> str:
    """Return up to five names, and that there are more.

    >>> first_few("abcdef")
    'a, b, c, d, e, ...'
    """
    return ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])


def drop_unsafe(text: str) -> str:
    """Return a text with single spaces, without the characters that :func:`check_text` refuses.

    >>> drop_unsafe("a \\u202ecat\\x07\\n sleeps")
    'a cat sleeps'
    """
    return "".join(character for character in " ".join(text.split()) if not _is_unsafe(character))


def _is_unsafe(character: str) -> bool:
    """Return whether a character is no text: control, half a pair, or one that turns direction.

    With the last kind, what is read is not what is stored. Marks that right-to-left scripts need
    for themselves (U+200E, U+200F) are text.
    """
    return (
        unicodedata.category(character) in ("Cc", "Cs")
        or "\u202a" <= character <= "\u202e"
        or "\u2066" <= character <= "\u2069"
    )


def check_label(name: str, what: str) -> str:
    """Return a name of 1 to 200 characters as it was given, or raise.

    >>> check_label("Ada\\u202e", "a person's name")
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a person's name holds an invalid character: U+202E
    """
    if not name.strip() or len(name) > 200:
        raise InputError(f"{name!r} is not a name; {what} has 1 to 200 characters")
    check_text(name, what)
    if any(map(_is_unsafe, name)):  # a tab or a new line
        raise InputError(f"{name!r} is not a name; {what} is one line")
    return name


def check_revision(text: str | None, caption: str, *, unchanged: bool) -> str:
    """Return a revision of a caption, or raise and say what is wrong with it.

    ``unchanged`` is whether the person says that the caption is right as it is.

    >>> check_revision("a dog", "a dog", unchanged=True)
    'a dog'
    >>> check_revision("x", "a dog on a beach", unchanged=False)
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a revised caption must be a sentence or a phrase, not 'x'
    """
    revised = check_text(text, "a revised caption")
    letters = sum(character.isalpha() for character in revised)
    # Scripts without spaces have words, too; few captions of theirs have under three letters.
    if letters < 3 or (" " in caption and " " not in revised and revised.isascii()):
        raise InputError(f"a revised caption must be a sentence or a phrase, not {revised!r}")
    if normalized(revised) == normalized(caption) and not unchanged:
        raise InputError(
            "the caption is as it was; if it is right as it is, tick the box that says so, "
            "otherwise please correct it"
        )
    return revised


def check_submission(submission: str) -> None:
    """Raise unless this can be the name that a browser gives to an answer."""
    if not isinstance(submission, str) or not 8 <= len(submission) <= 100:
        raise InputError("a submission needs a name of 8 to 100 characters")
    check_text(submission, "a submission's name")
