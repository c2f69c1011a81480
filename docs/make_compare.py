"""Update the comparison of three captioners in the tutorial, and its plot.

    python docs/make_compare.py FLICKR8K

FLICKR8K is the folder with images/, Flickr8k.token.txt and the split lists. The captioners are two
people, and the first five words of the first one's captions, on the first hundred test images.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from make_outputs import ROOT, run

COMMAND = "discode compare human-1.jsonl human-2.jsonl five-words.jsonl --plot captioners.png"
IMAGES = 100
PAGE = ROOT / "docs/tutorial/comparing.md"


def main() -> None:
    """Score and compare, and write the output into the page."""
    data = Path(sys.argv[1]).resolve()
    names = (data / "Flickr_8k.testImages.txt").read_text().split()[:IMAGES]
    lines = (data / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    captions = dict(line.split("\t") for line in lines)
    first = {name: captions[f"{name}#0"] for name in names}
    captioners = {
        "human-1": first,
        "human-2": {name: captions[f"{name}#1"] for name in names},
        "five-words": {name: " ".join(text.split()[:5]) for name, text in first.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for captioner, texts in captioners.items():
            pairs = Path(f"{captioner}-pairs.jsonl")
            rows = [json.dumps({"image": name, "caption": text}) for name, text in texts.items()]
            pairs.write_text("\n".join(rows), encoding="utf-8")
            run(f"discode score -i {pairs} --images {data}/images -o {captioner}.jsonl")
        printed = run(COMMAND)
        Path("captioners.png").replace(ROOT / "docs/images/compare.png")
    end = re.search(r"^groups that differ.*$", printed, re.M)
    assert end is not None, printed
    tables = printed[: end.end()].split("\n\n", 1)
    block = f"$ {COMMAND}\n" + "\n\n".join(tables) + "\n...\n```"
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(rf"\$ {re.escape(COMMAND)}\n.*?```", text, re.S)
    assert shown is not None, PAGE
    PAGE.write_text(text[: shown.start()] + block + text[shown.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
