"""Collect images of public repositories: python -m training.gather KIND REPO FOLDER [LABELS]

    captions more captions of COCO, from lists in ankushjain2001/Image-Captioning-with-Autoencoders,
             yandex-research/swd and Ouxiang-Li/SAFE, one after the other; LABELS is a folder with
             captions.jsonl and objects.jsonl.gz, which say what may be trained with
    coco     photographs of COCO, from hai4h/cnn-edge-detection; LABELS is a captions.jsonl
    stated   more of them, with statements for captions; LABELS is the folder of captions.jsonl and
             statements.jsonl.gz
    icons    coloured icons and their names, from hfg-gmuend/openmoji
    emoji    the same in three dimensions, from microsoft/fluentui-emoji
    stamps   photographs and drawings of single things, from Debian's package
             tuxpaint-stamps-default, unpacked as REPO; LABELS is its list of sentences
    charts   charts and their titles, from vis-nlp/Chart-to-text (the part from Statista)

REPO is a git directory. FOLDER receives ``captions.jsonl``, one image per line ({"image", "split",
"captions"}), and the files, as ``training.data`` reads them. Blobs are asked for by hash: by path,
every look-up would parse a tree of 118,000 entries.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from PIL import Image

from discode.backends._embedded.tokenizer import normalise
from training.sources import MOST

CHARTS = 6000
STATED = 46_000
"""Photographs without captions that are taken for their statements."""
LISTS = (
    ("data/captions_train.csv", 0, 1),
    ("data/bounded/captions_train.csv", 1, 2),
    ("src/prompts/coco.csv", 1, 2),
    ("data/mscoco.csv", 0, 1),
)
"""Lists of captions: path in a repository, column of the image, column of the caption."""
LEFT_OUT = {"flags", "symbols", "component", "extras-unicode"}  # groups of icons and emoji
DEV_EVERY = 20
"""Every 20th drawing and chart is for dev."""
LONGEST = 20
"""Words of a sentence about a stamp; longer ones tell a story."""

Row = dict[str, Any]


def hashes(repo: Path, folder: str) -> dict[str, str]:
    """Return path to blob hash below a folder."""
    command = ["git", "-C", str(repo), "ls-tree", "-r", "HEAD", folder]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    rows = (line.partition("\t") for line in listed.splitlines())
    return {path: about.split()[2] for about, _, path in rows}


def blobs(repo: Path, wanted: list[str]) -> Iterator[bytes | None]:
    """Yield blobs by hash; None where the snapshot lacks one."""
    command = ["git", "-C", str(repo), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as git:
        assert git.stdin is not None
        assert git.stdout is not None
        for name in wanted:
            git.stdin.write(f"{name}\n".encode())
            git.stdin.flush()
            about = git.stdout.readline().split()
            if len(about) < 3:  # "<hash> missing"
                yield None
                continue
            yield git.stdout.read(int(about[2]))
            git.stdout.read(1)


def captions(repo: Path, folder: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield the captioned images with the captions that a repository's lists add."""
    rows = {row["image"]: row for row in _rows(folder / "captions.jsonl")}
    objects = _rows(folder / "objects.jsonl.gz")
    boxed = [row["image"] for row in objects if row["split"] == "train"]
    images = {int(Path(image).stem): image for image in (*rows, *boxed)}
    for path, place, column in LISTS:
        for text in blobs(repo, [*hashes(repo, path).values()]):
            for cells in csv.reader(io.StringIO((text or b"").decode("utf-8"))):
                found = re.search(r"(\d+)(\.jpg)?(#\d+)?$", cells[place])
                image = images.get(int(found[1])) if found else None
                if image is None:
                    continue
                row = rows.setdefault(image, {"image": image, "split": "train", "captions": []})
                known = {normalise(caption) for caption in row["captions"]}
                new = normalise(cells[column]) not in known | {""}
                if new and row["split"] == "train" and len(known) < MOST:
                    row["captions"].append(" ".join(cells[column].split()))
    yield from ((row, b"") for row in rows.values() if row["captions"])


def _rows(path: Path) -> list[Row]:
    """Read JSON lines, plain or compressed."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return list(map(json.loads, file))


def coco(repo: Path, captions: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield the captioned photographs."""
    yield from _photographs(repo, _rows(captions))


def stated(repo: Path, folder: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield photographs that have no captions, with statements of COCO-QA for captions."""
    captioned = {row["image"] for row in _rows(folder / "captions.jsonl")}
    rows = []
    for row in _rows(folder / "statements.jsonl.gz"):
        texts = [item["statement"] for item in row["items"] if item.get("statement")]
        if texts and row["image"] not in captioned and row["split"] == "train":
            rows.append({"image": row["image"], "split": "train", "captions": texts[:MOST]})
    random.Random(0).shuffle(rows)
    yield from _photographs(repo, rows[:STATED])


def _photographs(repo: Path, rows: list[Row]) -> Iterator[tuple[Row, bytes]]:
    found = hashes(repo, "train2017/")
    for row, file in zip(rows, blobs(repo, [found[r["image"]] for r in rows]), strict=True):
        if file is not None:
            yield row, file


def split_of(number: int) -> str:
    """Return the split of the drawing or chart with that number."""
    return "dev" if number % DEV_EVERY == 0 else "train"


def icons(repo: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield icons on white, each with its name, plain and as a phrase."""
    found = hashes(repo, "color/618x618/")
    table = next(blobs(repo, [hashes(repo, "data/openmoji.csv")["data/openmoji.csv"]]))
    assert table is not None
    rows = [
        row
        for row in csv.DictReader(io.StringIO(table.decode("utf-8")))
        if row["group"] not in LEFT_OUT and not row["skintone"]
    ]
    paths = [f"color/618x618/{row['hexcode']}.png" for row in rows]
    kept = [(row, found[path]) for row, path in zip(rows, paths, strict=True) if path in found]
    files = blobs(repo, [name for _, name in kept])
    for number, ((row, _), file) in enumerate(zip(kept, files, strict=True)):
        if file is not None:
            captions = _named(row["annotation"], "an icon of", "a cartoon drawing of")
            yield _drawing(f"{row['hexcode']}.png", number, captions, file)


def emoji(repo: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield emoji on white, each with its name, plain and as a phrase."""
    found = hashes(repo, "assets/")
    paths = sorted(path for path in found if fnmatch(path, "assets/*/3D/*_3d.png"))
    folders = [path.split("/")[1] for path in paths]
    about = blobs(repo, [found[f"assets/{folder}/metadata.json"] for folder in folders])
    groups = [json.loads(text or "{}").get("group", "") for text in about]
    files = blobs(repo, [found[path] for path in paths])
    for number, (folder, group, file) in enumerate(zip(folders, groups, files, strict=True)):
        if file is not None and group.lower() not in LEFT_OUT:
            captions = _named(folder.lower(), "an emoji of", "a shiny drawing of")
            yield _drawing(f"{folder.replace(' ', '_')}.png", number, captions, file)


def stamps(root: Path, sentences: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield single things on white, each with its sentence."""
    folder = root / "usr" / "share" / "tuxpaint" / "stamps"
    rows = json.loads(sentences.read_text(encoding="utf-8"))
    for number, row in enumerate(rows):
        path = folder / row["image"]
        thing = path.suffix == ".png" and not row["image"].startswith("symbols/")
        if thing and path.exists() and len(row["caption"].split()) <= LONGEST:
            yield _drawing(row["image"], number, [row["caption"]], path.read_bytes())


def _named(name: str, *frames: str) -> list[str]:
    return [name, *(f"{frame} {name}" for frame in frames)]


def _drawing(name: str, number: int, captions: list[str], file: bytes) -> tuple[Row, bytes]:
    """Return a row, and the drawing as a square on white."""
    drawing = Image.open(io.BytesIO(file)).convert("RGBA")
    drawing.thumbnail((256, 256))
    page = Image.new("RGBA", (256, 256), "white")
    page.alpha_composite(drawing, ((256 - drawing.width) // 2, (256 - drawing.height) // 2))
    buffer = io.BytesIO()
    page.convert("RGB").save(buffer, "PNG")
    return {"image": name, "split": split_of(number), "captions": captions}, buffer.getvalue()


def charts(repo: Path) -> Iterator[tuple[Row, bytes]]:
    """Yield charts with their titles, plain and as a phrase."""
    base = "statista_dataset/dataset"
    images, titles = hashes(repo, f"{base}/imgs/"), hashes(repo, f"{base}/titles/")
    numbers = [n for n in range(1, 4 * CHARTS) if f"{base}/imgs/{n}.png" in images]
    numbers = [n for n in numbers if f"{base}/titles/{n}.txt" in titles][:CHARTS]
    files = blobs(repo, [images[f"{base}/imgs/{n}.png"] for n in numbers])
    texts = blobs(repo, [titles[f"{base}/titles/{n}.txt"] for n in numbers])
    for number, file, text in zip(numbers, files, texts, strict=True):
        if file is None or text is None:
            continue
        title = text.decode("utf-8", errors="replace").strip()
        captions = [title, f"a chart showing the {title[:1].lower()}{title[1:]}"]
        about = {"image": f"{number}.png", "split": split_of(number), "captions": captions}
        yield about, file


def main() -> None:
    """Write a folder."""
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    kind, repo, folder, *rest = sys.argv[1:]
    target = Path(folder)
    kinds: dict[str, Callable[..., Iterator[tuple[Row, bytes]]]] = {
        "captions": captions,
        "coco": coco,
        "stated": stated,
        "icons": icons,
        "emoji": emoji,
        "stamps": stamps,
        "charts": charts,
    }
    rows = kinds[kind](Path(repo), *map(Path, rest))
    lines = []
    target.mkdir(parents=True, exist_ok=True)
    for row, file in rows:
        if file:
            path = target / row["image"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file)
        lines.append(json.dumps(row, ensure_ascii=False))
    (target / "captions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{kind}: {len(lines)} images")


if __name__ == "__main__":
    main()
