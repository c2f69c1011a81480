"""Captions that try to break what shows them: formulas, escapes, one endless word, no letters."""

from __future__ import annotations

HOSTILE = [
    "$\\frac{1}{0}$ $unclosed",
    "x" * 5000,
    "line\nbreaks\r\n\x1b[31m\x00 and \u202ereversed",
    "\\begin{document} %s {caption} <script>alert(1)</script> | a | b |",
    "狗在雪地里 🐕 \U0001f9d1\u200d\U0001f680",
    "\ud800 half a character",
    "",
    " ".join(["word"] * 4000),
]
