"""BLEU, ROUGE-L, CIDEr and METEOR of Flickr8k-Expert, against plain calls of pycocoevalcap.

    python perf/text_metrics.py --data FOLDER_OF_FLICKR8K

Both start cold, in one run: plain pycocoevalcap on the 16,992 judgments written out, and
discode's metrics on the 5,664 pairs they are about. Printed are both times, their ratio, and the
largest difference between any two values.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from discode._pairs import Pair
from discode._scores import Floats
from discode.benchmarks import load_benchmark
from discode.metrics._ngram import TextMetric, TokenisedTexts

NAMES = ("bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l", "cider", "meteor")
EXPERTS = 3


def read(folder: Path) -> list[Pair]:
    """Return the expert pairs, without those whose caption is one of the image's references."""
    return list(load_benchmark("flickr8k-expert", folder).pairs)


def ours(pairs: list[Pair]) -> dict[str, Floats]:
    """Return every metric's values, (N,) each."""
    texts = TokenisedTexts()
    values = {n: TextMetric(n, texts).score_pairs(pairs).value for n in NAMES if n != "cider"}
    repeats = [EXPERTS] * len(pairs)
    return values | {"cider": TextMetric("cider", texts).score_pairs(pairs, repeats=repeats).value}


def plain(pairs: list[Pair]) -> dict[str, Floats]:
    """Return the same from pycocoevalcap, on every judgment, (N * EXPERTS,) each."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider as PlainCider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    flat = [pair for pair in pairs for _ in range(EXPERTS)]
    tokenizer = PTBTokenizer()
    gts = tokenizer.tokenize(
        {i: [{"caption": text} for text in pair.references] for i, pair in enumerate(flat)}
    )
    res = tokenizer.tokenize({i: [{"caption": pair.caption}] for i, pair in enumerate(flat)})
    _, bleus = Bleu(4).compute_score(gts, res, verbose=0)
    return {
        **{f"bleu-{n + 1}": np.array(bleus[n]) for n in range(4)},
        "rouge-l": Rouge().compute_score(gts, res)[1],
        "cider": PlainCider().compute_score(gts, res)[1],
        "meteor": np.array(Meteor().compute_score(gts, res)[1]),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Flickr8k's text files")
    pairs = read(parser.parse_args().data)
    start = time.perf_counter()
    mine = ours(pairs)
    middle = time.perf_counter()
    theirs = plain(pairs)
    end = time.perf_counter()
    print(f"discode       {middle - start:7.2f} s, {len(pairs):,} pairs")
    print(f"pycocoevalcap {end - middle:7.2f} s, {EXPERTS * len(pairs):,} judgments")
    print(f"ratio         {(middle - start) / (end - middle):7.3f}")
    for name in NAMES:
        worst = np.abs(np.repeat(mine[name], EXPERTS) - theirs[name]).max()
        print(f"{name:13} largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
