from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from discode._paper.styles import SIDE, STYLES, _components, _kuwahara, _windows, render
from discode.errors import UnknownNameError
from discode.images import demo_path

CHANCE = ["painting", "quickdraw", "infograph", "noisy"]


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """The demo's photographs, small."""
    files = [demo_path() / f"{name}.jpg" for name in ("astronaut", "cat", "coffee", "city")]
    return [Image.open(file).convert("RGB").resize((160, 120)) for file in files]


def pixels(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image, np.float64)


@pytest.mark.parametrize("style", STYLES)
def test_chance_is_the_seeds_and_nobody_elses(photos: list[Image.Image], style: str) -> None:
    np.random.seed(1)
    first = render(photos[0], style, seed=3)
    np.random.seed(2)
    assert first.tobytes() == render(photos[0], style, seed=3).tobytes()
    assert (first.tobytes() != render(photos[0], style, seed=-1).tobytes()) == (style in CHANCE)


def test_chance_comes_from_the_image_too(photos: list[Image.Image]) -> None:
    grain = [pixels(render(Image.new("RGB", (40, 40), c), "noisy")) for c in ("red", "blue")]
    assert abs(np.corrcoef(grain[0].ravel(), grain[1].ravel())[0, 1]) < 0.9
    bars = [pixels(render(photo, "infograph"))[:10].mean(axis=(0, 1)) for photo in photos]
    assert len({tuple(bar) for bar in bars}) > 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 500), (500, 3), (7, 5), (901, 640)])
def test_any_size_comes_back(style: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = render(Image.fromarray(noise), style)
    assert (out.size, out.mode) == (size, "RGB")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_any_mode_becomes_rgb(photos: list[Image.Image], style: str, mode: str) -> None:
    source = photos[0].resize((40, 30))
    if mode == "I;16":
        source = Image.fromarray(np.asarray(source.convert("L"), np.uint16) * 257)
        assert source.mode == mode
    before = source.convert(mode) if source.mode != mode else source
    kept = before.tobytes()
    out = render(before, style)
    assert (out.size, out.mode) == ((40, 30), "RGB")
    assert before.tobytes() == kept  # the caller's image is left alone


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("colour", ["black", "white", "red"])
def test_a_constant_image_has_no_lines(style: str, colour: str) -> None:
    out = pixels(render(Image.new("RGB", (50, 40), colour), style))
    if style in ("photo", "clipart"):
        assert (out == out[0, 0]).all()
    if style == "quickdraw":
        assert (out == 255).all()


@pytest.mark.parametrize("index", range(4))
def test_each_style_is_what_its_name_says(photos: list[Image.Image], index: int) -> None:
    photo = pixels(photos[index])
    drawn = {style: pixels(render(photos[index], style)) for style in STYLES}
    assert (drawn["photo"] == photo).all()
    for one, two in combinations(STYLES, 2):
        assert np.abs(drawn[one] - drawn[two]).mean() > 4, (one, two)
    for style in ("sketch", "quickdraw"):
        assert (drawn[style] == drawn[style][..., :1]).all(), f"{style} has colour"
    white = {style: (drawn[style] > 250).all(axis=-1).mean() for style in STYLES}
    assert 0.6 < white["quickdraw"] < 0.99
    assert white["sketch"] < white["quickdraw"]  # a sketch has more detail
    assert len(np.unique(drawn["clipart"].reshape(-1, 3), axis=0)) <= 11  # ten and the line
    assert len(np.unique(photo.reshape(-1, 3), axis=0)) > 1000
    # Noise of standard deviation 22 (clipped at black), on what is left of the photograph.
    calm = pixels(render(photos[index], "noisy").reduce(8))
    assert calm.std() < 0.6 * pixels(photos[index].reduce(8)).std()
    assert 15 < (drawn["noisy"][:, 1:] - drawn["noisy"][:, :-1]).std() / np.sqrt(2) < 26
    # Paint stays near the photograph's colours; a page keeps only a panel of it.
    assert np.abs(drawn["painting"] - photo).mean() < 30
    assert np.abs(drawn["infograph"] - photo).mean() > 40


def test_a_large_image_is_shifted_as_its_thumbnail(photos: list[Image.Image]) -> None:
    small = photos[0].resize((SIDE, SIDE))
    large = small.resize((3 * SIDE, 3 * SIDE), Image.Resampling.LANCZOS)
    for style in ("sketch", "clipart"):
        a, b = (pixels(render(image, style).resize((56, 56))) for image in (small, large))
        assert np.abs(a - b).mean() < 6, style


def test_photo_is_a_copy() -> None:
    original = Image.new("RGB", (1000, 2), "red")
    copy = render(original, "photo")
    copy.putpixel((0, 0), (0, 0, 0))
    assert original.getpixel((0, 0)) == (255, 0, 0)
    assert render(Image.new("RGBA", (9, 9), (255, 0, 0, 0)), "photo").getpixel((4, 4)) == (255,) * 3
    with pytest.raises(UnknownNameError, match="sketsch"):
        render(original, "sketsch")


def test_windows_and_kuwahara_by_brute_force() -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(float)
    means = _windows(values, 3)
    want = [[values[y : y + 3, x : x + 3].mean(axis=(0, 1)) for x in range(5)] for y in range(7)]
    np.testing.assert_allclose(means, want, atol=1e-9)
    out = _kuwahara(values, 2)
    y, x = 4, 3  # far from the border
    squares = [values[a : a + 3, b : b + 3].reshape(-1, 3) for a in (2, 4) for b in (1, 3)]
    calm = min(squares, key=lambda square: np.var(square @ [0.299, 0.587, 0.114]))
    np.testing.assert_allclose(out[y, x], calm.mean(axis=0), atol=1e-9)


def test_components_by_scipy() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    for links in (rng.integers(0, 300, (200, 2)), np.stack([np.arange(299), np.arange(1, 300)], 1)):
        graph = sparse.coo_matrix((np.ones(len(links)), links.T), (300, 300))
        _, want = sparse.csgraph.connected_components(graph, directed=False)
        smallest = np.array([np.flatnonzero(want == group)[0] for group in want])
        assert (_components(300, links) == smallest).all()
