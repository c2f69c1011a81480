"""Find wrong words in a caption by their effect on the judge's score."""

from discode.explain._effects import MAX_SPANS, THRESHOLD, Explanation
from discode.explain._phrases import KINDS, Span, find_spans

__all__ = ["KINDS", "MAX_SPANS", "THRESHOLD", "Explanation", "Span", "find_spans"]
