"""Measure what right words add to a judge's scores: WORD_EFFECTS of discode.explain._effects.

``python -m training.word_effects captions.jsonl IMAGES`` explains the first caption of every dev
image of COCO that is in the folder. Of half of the images it prints the mean effect by kind of
word; of the others, how many captions have a word marked with the effects that are recorded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import discode
from discode.explain import KINDS, Explanation


def dev_pairs(captions: Path, images: Path) -> list[discode.Pair]:
    """Return the first caption of each dev image that is there, by name."""
    rows = map(json.loads, captions.read_text(encoding="utf-8").splitlines())
    paths = {images / Path(row["image"]).name: row for row in rows if row["split"] == "dev"}
    found = sorted(path for path in paths if path.is_file())
    return [discode.Pair(str(path), paths[path]["captions"][0]) for path in found]


def mean_effects(explained: list[Explanation]) -> dict[str, tuple[float, int]]:
    """Return the mean effect of each kind of word, and how many there are."""
    words = [span for each in explained for span in each.spans]
    kinds = {kind: [span.effect for span in words if span.kind == kind] for kind in KINDS}
    return {kind: (float(np.mean(found)), len(found)) for kind, found in kinds.items() if found}


def main() -> None:
    """Print the effects, and how often right words are suspected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captions", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--store", type=Path, help="keep the readings in this file")
    arguments = parser.parse_args()
    judge = discode.load("embedded", store=arguments.store)
    pairs = dev_pairs(arguments.captions, arguments.images)
    for kind, (effect, words) in mean_effects(judge.explain_pairs(pairs[::2])).items():
        print(f"{kind:10} {effect:+.3f}  {words} words")
    others = judge.explain_pairs(pairs[1::2])
    marked = [any(span.marked for span in each.spans) for each in others]
    print(f"with a marked word: {100 * np.mean(marked):.1f} % of {len(marked)} captions")
    print(others[0].signature)


if __name__ == "__main__":
    main()
