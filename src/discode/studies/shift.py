"""The same judgments on re-rendered images: every decoder in every domain, for the same people.

The paper compares decoders across MCEval's domains, whose data is not public. Here the images of a
benchmark are drawn again as paintings, sketches and so on (:mod:`discode.shift`), and people's
judgments of the originals are kept: a caption that fits a photograph fits its drawing. What differs
between the columns is therefore the rendering alone. What is not measured: how people would judge
the drawings, on which less can be seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.errors import ImageError, InputError, lookup
from discode.files import replacing
from discode.images import ImageSource, image_digest, open_image
from discode.shift import STYLES, render

ORIGINAL = "photo"
"""The style that leaves an image as it is: its readings may be stored already."""


def keep_images(benchmark: Benchmark, count: int) -> Benchmark:
    """Return a benchmark with ``count`` of its images and their judgments.

    Which ones is decided by the SHA-256 of their names, so that they are spread over the data and
    a larger count only adds images: what was read stays of use.
    """
    if count < 1:
        raise InputError(f"images={count} is not allowed; give 1 or more, or all")
    first: dict[int, str] = {}
    for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True):
        first.setdefault(number, Path(str(pair.image)).name)
    if count >= len(first):
        return benchmark
    order = sorted(first, key=lambda image: hashlib.sha256(first[image].encode()).hexdigest())
    kept = np.isin(benchmark.image, order[:count])
    place = np.cumsum(kept) - 1
    judged = benchmark.judgments
    judgments: Ratings | Preferences
    if isinstance(judged, Ratings):
        rows = kept[judged.pair]
        judgments = Ratings(place[judged.pair[rows]], judged.value[rows], judged.rater[rows])
    else:
        rows = kept[judged.left] & kept[judged.right]
        category = tuple(np.array(judged.category)[rows].tolist())
        judgments = Preferences(
            place[judged.left[rows]], place[judged.right[rows]], judged.chosen[rows], category
        )
    return replace(
        benchmark,
        pairs=tuple(pair for pair, keep in zip(benchmark.pairs, kept, strict=True) if keep),
        image=benchmark.image[kept],
        judgments=judgments,
        options={**benchmark.options, "images": str(count)},
        notes=(*benchmark.notes, f"{count} of {len(first)} images, by the SHA-256 of their names"),
    )


def render_benchmark(benchmark: Benchmark, style: str, folder: Path, *, seed: int = 0) -> Benchmark:
    """Return a benchmark whose images are drawn in a style, as PNG files below ``folder``.

    A file is named by the SHA-256 of the image it was made of, and is not drawn twice; since a
    store of readings knows an image by its own SHA-256, nothing is asked twice either. An image
    that cannot be opened stays as it is, and fails with its reason when it is judged. The name of
    the result ("flickr8k-expert@sketch") keeps it from being held against published numbers.
    """
    lookup(STYLES, style, "style")
    drawn: dict[str, ImageSource] = {}
    if style != ORIGINAL:
        place = folder / f"{style}-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        for image in dict.fromkeys(str(pair.image) for pair in benchmark.pairs):
            drawn[image] = _draw(image, style, seed, place)
    return replace(
        benchmark,
        name=f"{benchmark.name}@{style}",
        pairs=tuple(
            replace(pair, image=drawn.get(str(pair.image), pair.image)) for pair in benchmark.pairs
        ),
        options={**benchmark.options, "style": style, "seed": str(seed)},
    )


def _draw(image: str, style: str, seed: int, folder: Path) -> str:
    try:
        file = folder / f"{image_digest(image)[:32]}.png"
        if not file.is_file():
            with replacing(file) as temp:
                made = render(open_image(image), style, seed=seed)
                made.save(temp, format="PNG", compress_level=1)
    except ImageError:
        return image
    return str(file)


def chosen_styles(given: str) -> list[str]:
    """Return the styles of a list with commas; "all" are those of the paper and "noisy".

    >>> chosen_styles("sketch,photo")
    ['photo', 'sketch']
    """
    names = list(STYLES) if given == "all" else [name.strip() for name in given.split(",")]
    for name in names:
        lookup(STYLES, name, "style", also=", or all")
    return [name for name in STYLES if name in {ORIGINAL, *names}]


