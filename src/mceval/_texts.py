"""Check texts of participants, and names and captions from organisers."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from discode.errors import InputError
from mceval.rules import normalized

LONGEST = 4000
"""Characters of a revised caption or a reason."""


def check_text(text: str | None, what: str) -> str:
    """Check a text and collapse its white space."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{what} must not be empty")
    if len(text) > LONGEST:
        raise InputError(f"{what} must be at most {LONGEST} characters, not {len(text)}")
    spaced = " ".join(text.split())
    bad = next(filter(_is_unsafe, spaced), None)
    if bad is not None:
        raise InputError(f"{what} contains an invalid character: U+{ord(bad):04X}")
    return spaced


def first_few(names: Sequence[str]) -> str:
    """Join up to five names, with "..." for the rest.

    >>> first_few("abcdef")
    'a, b, c, d, e, ...'
    """
    return ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])


def drop_unsafe(text: str) -> str:
    """Collapse white space and remove the characters that :func:`check_text` refuses.

    >>> drop_unsafe("a \\u202ecat\\x07\\n sleeps")
    'a cat sleeps'
    """
    return "".join(character for character in " ".join(text.split()) if not _is_unsafe(character))


def _is_unsafe(character: str) -> bool:
    """Whether a character is a control character, a surrogate or a direction override.

    After a direction override, the visible text differs from the stored one. The marks that
    right-to-left scripts need (U+200E, U+200F) are allowed.
    """
    return (
        unicodedata.category(character) in ("Cc", "Cs")
        or "\u202a" <= character <= "\u202e"
        or "\u2066" <= character <= "\u2069"
    )


def check_label(name: str, what: str) -> str:
    """Check a name: one line of 1 to 200 characters.

    >>> check_label("Ada\\u202e", "a person's name")
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a person's name contains an invalid character: U+202E
    """
    if not name.strip() or len(name) > 200:
        raise InputError(f"{what} must have 1 to 200 characters, not {name!r}")
    check_text(name, what)
    if any(map(_is_unsafe, name)):  # a tab or a new line
        raise InputError(f"{what} must be a single line, not {name!r}")
    return name


def check_revision(text: str | None, caption: str, *, unchanged: bool) -> str:
    """Check a revision of a caption and collapse its white space.

    ``unchanged`` confirms that the caption is right as it is.

    >>> check_revision("a dog", "a dog", unchanged=True)
    'a dog'
    >>> check_revision("x", "a dog on a beach", unchanged=False)
    Traceback (most recent call last):
        ...
    discode.errors.InputError: a revised caption must be a sentence or a phrase, not 'x'
    """
    revised = check_text(text, "a revised caption")
    letters = sum(character.isalpha() for character in revised)
    # Scripts without spaces also have words; few of their captions have under three letters.
    if letters < 3 or (" " in caption and " " not in revised and revised.isascii()):
        raise InputError(f"a revised caption must be a sentence or a phrase, not {revised!r}")
    if normalized(revised) == normalized(caption) and not unchanged:
        raise InputError(
            "the caption is unchanged; please correct it, or tick the box if it is right as it is"
        )
    return revised


def check_submission(submission: str) -> None:
    if not isinstance(submission, str) or not 8 <= len(submission) <= 100:
        raise InputError("a submission's name must have 8 to 100 characters")
    check_text(submission, "a submission's name")
