"""Files that are nearly images: each is a score or a failed row with its reason, and never more.

Eight formats are damaged in seven ways; and some files are made to be hard: depths that are easily
read wrong, pixels that are no numbers, sizes that fill a memory, files that never end, files that
other programs would open. Where the picture is known, what is decoded must look like it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from PIL import Image, features

from discode.errors import ImageError
from discode.images import demo_path, open_image
from perf.attack.harness import CONTEXT, Command, Report, peak_mb, tracebacks
from tests.helpers.samples import encoded

SECONDS = 60
"""Of CPU that an image may take before it counts as hanging."""
MOST_MB = 1024
"""Memory that the door may take: the budget of an image (768 MB), and the process around it."""
SAMPLE = 10
"""One file of so many also goes through ``discode score``."""
REFUSED = "must be refused"
Truth = str | np.ndarray | None
"""What must come of a file: a refusal, this picture (or a refusal), or anything but a crash."""


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Open ``count`` files, and score a sample of them."""
    files = folder / "files"
    files.mkdir()
    (folder / "bin").mkdir()
    spy = folder / "bin" / "gs"
    spy.write_text(f"#!/bin/sh\necho called >> {folder}/called\nexit 1\n")
    spy.chmod(0o755)
    env = {"PATH": f"{spy.parent}{os.pathsep}{os.environ['PATH']}"}
    truths = dict(itertools.islice(hard_files(files), count // 2))
    for number in range(len(truths), count):
        name, data = mutated(rng, number)
        (files / name).write_bytes(data)
        truths[str(files / name)] = None
    names = list(truths)
    outcomes, peak = open_all(names, truths, env)
    report = Report(f"images: {len(names)} files, each opened as a judge would")
    report.count(Counter(kind if kind != "refused" else f"refused: {_short(why)}"
                         for kind, why in outcomes))  # fmt: skip
    bad = [
        f"{Path(name).name!r}: {kind} {why}"
        for name, (kind, why) in zip(names, outcomes, strict=True)
        if kind not in ("decoded", "refused")
    ]
    report.promise("decoded as it is, or refused with a reason", bad)
    report.promise(f"within {MOST_MB} MB ({peak})", [peak] if peak > MOST_MB else [])
    _score(report, [Path(name).name for name in names[::SAMPLE]], folder, env)
    report.promise("no other program called", ["gs"] if (folder / "called").exists() else [])
    return report


def _short(reason: str) -> str:
    return re.sub(r"\d+", "#", reason.rpartition(": ")[2])


def open_all(
    names: list[str], truths: dict[str, Truth], env: dict[str, str]
) -> tuple[list[tuple[str, str]], int]:
    """Return what became of each file, and the most memory of the processes that opened them."""
    outcomes: list[tuple[str, str]] = []
    peak = 0
    while len(outcomes) < len(names):  # again after a crash, from the file after it
        rest = names[len(outcomes) :]
        here, there = CONTEXT.Pipe(duplex=False)
        worker = CONTEXT.Process(target=_open, args=(there, rest, [truths[n] for n in rest], env))
        worker.start()
        there.close()
        try:
            while len(outcomes) < len(names):
                kind, why, most = here.recv()
                outcomes.append((kind, why))
                peak = max(peak, most)
        except EOFError:
            worker.join()
            outcomes.append(("CRASH", f"signal {-(worker.exitcode or 0)}"))
        worker.join()
    return outcomes, peak


def _open(there: Connection, names: list[str], truths: list[Truth], env: dict[str, str]) -> None:
    """Open files in a process of its own; SIGPROF, which nothing handles here, ends a hang."""
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff's own words
    for name, truth in zip(names, truths, strict=True):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        try:
            image = open_image(name)
            kind, why = "decoded", ""
            if image.mode != "RGB" or not image.width or not image.height:
                kind, why = "WRONG", f"{image.mode} {image.size}"
            elif isinstance(truth, str):
                kind, why = "WRONG", "it was decoded"
            elif truth is not None:
                seen = np.asarray(image.resize(truth.shape[1::-1]), np.float64)
                if (far := float(np.abs(seen - truth).mean())) > 6:
                    kind, why = "WRONG", f"{far:.0f} of 255 off on average"
        except ImageError as error:
            kind, why = ("refused", str(error)) if str(error) else ("WRONG", "no reason given")
        except BaseException as error:  # whatever it is, it came through the door
            kind, why = "ERROR", repr(error)
        there.send((kind, why, peak_mb()))
    there.close()


def _score(report: Report, names: list[str], folder: Path, env: dict[str, str]) -> None:
    """Score a sample as a user would, and check its rows."""
    table = folder / "pairs.jsonl"
    rows = [{"id": str(i), "image": name, "caption": "a cat"} for i, name in enumerate(names)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = Command(
        folder, "score", "-i", table, "--images", "files", "-o", "scores.jsonl",
        "--model", "embedded", env=env,
    )  # fmt: skip
    code = command.wait()
    out = folder / "scores.jsonl"
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    scored = [json.loads(line) for line in lines]
    report.say("discode score, a sample", len(names))
    report.say("  with a score", sum(row["score"] is not None for row in scored))
    whole = [row["id"] for row in scored] == [row["id"] for row in rows]
    said = f"{len(scored)} rows, exit code {code}: {command.stderr[-200:]}"
    report.promise("  every row is there, in order", [] if whole else [said])
    odd = [
        row
        for row in scored
        if (row["score"] is None) != bool(row["error"])
        or not (row["score"] is None or 0 <= row["score"] <= 1)
    ]
    report.promise("  each a score or a reason", odd)
    failed = any(row["score"] is None for row in scored)
    report.promise("  exit code", [] if code == int(failed) else [code])
    report.promise("  no traceback", tracebacks(command.stderr))
    report.promise(f"  within {MOST_MB} MB ({command.peak_mb})",
                   [command.peak_mb] if command.peak_mb > MOST_MB else [])  # fmt: skip


def picture(side: int = 96) -> Image.Image:
    """Return a photograph, small."""
    return open_image(demo_path() / "cat.jpg").resize((side, side))


def _bases() -> list[tuple[str, bytes]]:
    photo = picture()
    made = [
        (form.lower(), encoded(photo, form, **options))
        for form, options in (
            ("JPEG", {}),
            ("JPEG", {"progressive": True}),
            ("PNG", {}),
            ("GIF", {}),
            ("BMP", {}),
            ("TIFF", {}),
            ("TIFF", {"compression": "tiff_lzw"}),
            ("WEBP", {}),
        )
    ]
    if features.check("avif"):
        made.append(("avif", encoded(photo, "AVIF")))
    return made


def _flip(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    for place in rng.integers(0, len(data) * 8, rng.integers(1, 30)):
        data[place // 8] ^= 1 << place % 8


def _cut(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    del data[rng.integers(0, len(data)) :]


def _header(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    width = int(rng.choice([1, 2, 4]))
    place = int(rng.integers(0, 64))
    value = [b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", rng.bytes(4)]
    data[place : place + width] = value[rng.integers(5)][:width]


def _head_of_another(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    size = int(rng.integers(2, 200))
    data[:size] = other[:size]


def _move(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    a, b = sorted(rng.integers(0, len(data), 2).tolist())
    data[:] = data[b:] + data[a:b] + data[:a] if rng.random() < 0.3 else (
        data[:a] + data[b:] + data[a:b]
    )  # fmt: skip


def _insert(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    place = int(rng.integers(0, len(data)))
    data[place:place] = rng.bytes(int(rng.integers(1, 500)))


def _tail(rng: np.random.Generator, data: bytearray, other: bytes) -> None:
    data += other


MUTATIONS: tuple[Callable[[np.random.Generator, bytearray, bytes], None], ...] = (
    _flip, _flip, _cut, _header, _header, _head_of_another, _move, _insert, _tail,
)  # fmt: skip
BASES: list[tuple[str, bytes]] = []


def mutated(rng: np.random.Generator, number: int) -> tuple[str, bytes]:
    """Return the name and the bytes of a damaged file; its suffix need not be its format's."""
    BASES[:] = BASES or _bases()
    form, data = BASES[number % len(BASES)]
    other_form, other = BASES[rng.integers(len(BASES))]
    damaged = bytearray(data)
    for _ in range(rng.integers(1, 3)):
        if damaged:
            MUTATIONS[rng.integers(len(MUTATIONS))](rng, damaged, other)
    return f"{number:05}.{form if rng.random() < 0.7 else other_form}", bytes(damaged)


def hard_files(folder: Path) -> Iterator[tuple[str, Truth]]:
    """Make the files that no mutation would find, each with what must come of it."""
    photo = picture()
    grey = photo.convert("L")
    rgb, levels = np.asarray(photo, np.float64), np.asarray(grey, np.float64)
    shown = np.repeat(levels[..., None], 3, axis=2)

    def made(name: str, data: bytes, truth: Truth = None) -> tuple[str, Truth]:
        (folder / name).write_bytes(data)
        return str(folder / name), truth

    def deep(name: str, values: np.ndarray, truth: Truth = None) -> tuple[str, Truth]:
        form = "PNG" if name.endswith("png") else "TIFF"
        return made(name, encoded(Image.fromarray(values), form), shown if truth is None else truth)

    # Depth: the same photograph, or no photograph at all.
    unit = (levels / 255).astype(np.float32)
    yield deep("float-unit.tif", unit)
    yield deep("float-255.tif", levels.astype(np.float32))
    yield deep("float-65535.tif", (levels * 257).astype(np.float32))
    yield deep("16-bit.png", (levels * 257).astype(np.uint16))
    yield deep("16-bit.tif", (levels * 257).astype(np.uint16))
    yield deep("12-in-16.png", (levels * 4095 / 255).astype(np.uint16))
    yield deep("12-in-16.tif", (levels * 4095 / 255).astype(np.uint16))
    yield deep("10-in-16.tif", (levels * 1023 / 255).astype(np.uint16))
    yield deep("32-bit.tif", (levels / 255 * (2**31 - 1)).astype(np.int32))
    yield deep("8-in-32.tif", levels.astype(np.int32))
    for word, value in (("nan", np.nan), ("inf", np.inf), ("minus-inf", -np.inf)):
        spoiled = unit.copy()
        spoiled[10:20, 10:20] = value
        yield deep(f"float-{word}.tif", spoiled, REFUSED)
        yield deep(f"all-{word}.tif", np.full_like(unit, value), REFUSED)
    yield made("cmyk.jpg", encoded(photo.convert("CMYK"), "JPEG"), rgb)
    yield made("palette.png", encoded(photo.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"))
    yield made("one-bit.png", encoded(grey.convert("1"), "PNG"))
    yield made("grey.webp", encoded(grey, "WEBP"), shown)
    clear = Image.merge("RGBA", (*photo.split(), Image.new("L", photo.size, 0)))
    yield made("clear.png", encoded(clear, "PNG"), np.full_like(rgb, 255))
    solid = Image.merge("LA", (grey, Image.new("L", grey.size, 255)))
    yield made("grey-alpha.png", encoded(solid, "PNG"), shown)

    # Size: what a header declares, and what little data may become.
    yield made("wide.png", _png(200_000, 1, 8, 0, 1), None)
    yield made("vast.png", _png(100_000, 100_000, 8, 2, 10), REFUSED)
    yield made("most.png", _png(2**31 - 1, 2**31 - 1, 16, 6, 10), REFUSED)
    yield made("bomb-8.png", _png(9_400, 9_400, 8, 2), None)
    yield made("bomb-16.png", _png(9_400, 9_400, 16, 0), None)
    yield made("bomb-rgba-16.png", _png(9_400, 9_400, 16, 6), None)
    yield made("text-bomb.png", _text_bomb())
    yield made("frames.gif", encoded(photo, "GIF", save_all=True, append_images=[grey] * 200))
    yield made("screen.gif", b"GIF89a\xff\xff\xff\xff\x00\x00\x00" + encoded(photo, "GIF")[13:])

    # What is no file of bytes, or has no end; names.
    for name, size in (("sparse-15-tb.png", 15 << 40), ("sparse-300-mb.tif", 300 << 20)):
        path, _ = made(name, encoded(photo, "PNG"), REFUSED)
        try:
            os.truncate(path, size)
        except OSError:  # this file system has smaller files
            os.truncate(path, 1 << 40)
        yield path, REFUSED
    os.mkfifo(folder / "pipe.png")
    yield str(folder / "pipe.png"), REFUSED
    for device in ("zero", "urandom", "null"):
        (folder / f"{device}.jpg").symlink_to(f"/dev/{device}")
        yield str(folder / f"{device}.jpg"), REFUSED
    (folder / "folder.png").mkdir()
    yield str(folder / "folder.png"), REFUSED
    (folder / "loop.png").symlink_to("loop.png")
    yield str(folder / "loop.png"), REFUSED
    yield str(folder / "missing.png"), REFUSED
    yield str(folder / "n\0l.png"), REFUSED
    yield str(folder / ("x" * 5000 + ".png")), REFUSED
    yield made("\x1b[31m.png", encoded(photo, "PNG"), rgb)
    yield made("empty.png", b"", REFUSED)

    # What Pillow would hand to other programs, or to parsers that are not for photographs.
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n"
    for name in ("photo.jpg", "photo.eps", "photo.png"):
        yield made(f"eps-{name}", eps, REFUSED)
    yield made("svg.png", b"<svg xmlns='http://www.w3.org/2000/svg'><circle r='9'/></svg>", REFUSED)
    yield made("pdf.jpg", b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<<>>", REFUSED)
    yield made("pcx.jpg", encoded(photo, "PCX"), REFUSED)
    yield made("tga.png", encoded(photo, "TGA"), REFUSED)
    yield made("xbm.png", encoded(grey.convert("1"), "XBM"), REFUSED)
    yield made("icon.png", encoded(photo, "ICO"), REFUSED)
    yield made("wmf.jpg", b"\xd7\xcd\xc6\x9a" + b"\0" * 100, REFUSED)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, bits: int, colours: int, rows: int | None = None) -> bytes:
    """Return a PNG of zeros that has ``rows`` rows, whatever its header says."""
    line = 1 + width * bits * {0: 1, 2: 3, 6: 4}[colours] // 8
    pack = zlib.compressobj()
    zeros = b"\0" * min(line, 1 << 20)
    whole = (height if rows is None else min(rows, height)) * line
    whole = min(whole, 1 << 30)
    data = b"".join(pack.compress(zeros) for _ in range(whole // len(zeros)))
    data += pack.compress(zeros[: whole % len(zeros)]) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, part) for kind, part in ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    )


def _text_bomb() -> bytes:
    plain = encoded(picture(8), "PNG")
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * (256 << 20)))
    return plain[:33] + text * 4 + plain[33:]
