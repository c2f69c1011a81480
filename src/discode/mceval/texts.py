"""Check the texts that people type."""

from __future__ import annotations

from discode.errors import InputError

LONGEST = 4000
"""Characters of a revised caption or a reason."""


def check_text(text: str | None, what: str) -> str:
    """Return a text with single spaces, or raise and say what is wrong with it."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{what} must be a text with something in it")
    if len(text) > LONGEST:
        raise InputError(f"{what} must be at most {LONGEST} characters, not {len(text)}")
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise InputError(f"{what} holds an invalid character")
    return " ".join(text.split())


def check_submission(submission: str) -> None:
    """Raise unless this can be the name that a browser gives to an answer."""
    if not isinstance(submission, str) or not 8 <= len(submission) <= 100:
        raise InputError("a submission needs a name of 8 to 100 characters")
    check_text(submission, "a submission's name")
