"""Damaged image files: each is decoded or refused with a reason, and nothing else happens."""

from __future__ import annotations

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import features

from discode.errors import ImageError
from discode.images import demo_path, open_image

FORMATS: list[tuple[str, dict[str, object]]] = [
    ("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("BMP", {}),
    ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("WEBP", {}),
    *([("AVIF", {})] if "avif" in features.get_supported() else []),
]  # fmt: skip


def encoded(form: str, options: dict[str, object]) -> bytes:
    out = io.BytesIO()
    image = open_image(demo_path() / "cat.jpg").resize((48, 48))
    image.save(out, form, **options)
    return out.getvalue()


FILES = [encoded(form, options) for form, options in FORMATS]
PLACE = st.floats(0, 1, exclude_max=True)
MUTATIONS = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE, st.just(0)),
    st.tuples(st.just("header"), st.floats(0, 0.02), st.sampled_from([0, 0x7F, 0x80, 0xFF])),
    st.tuples(st.just("insert"), PLACE, st.integers(1, 255)),
    st.tuples(st.just("head of"), PLACE, st.integers(0, len(FILES) - 1)),
    st.tuples(st.just("append"), PLACE, st.integers(0, len(FILES) - 1)),
)


def mutated(data: bytes, how: str, place: float, value: int) -> bytes:
    at, result = int(place * len(data)), bytearray(data)
    if how == "flip" and result:
        result[at] ^= 1 << value
    elif how == "cut":
        del result[at:]
    elif how == "header":
        result[at : at + 4] = bytes([value]) * 4
    elif how == "insert":
        result[at:at] = bytes([value]) * value
    elif how == "head of":
        size = int(place * 200)
        result[:size] = FILES[value][:size]
    elif how == "append":
        result += FILES[value]
    return bytes(result)


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(st.integers(0, len(FILES) - 1), st.lists(MUTATIONS, min_size=1, max_size=4))
def test_damaged_files_are_decoded_or_refused(
    number: int, mutations: list[tuple[str, float, int]]
) -> None:
    data = FILES[number]
    for mutation in mutations:
        data = mutated(data, *mutation)
    try:
        image = open_image(data)
    except ImageError as error:
        reason = str(error)
    else:
        reason = f"decoded as {image.mode}" * (image.width > 0 and image.height > 0)
    assert reason
    assert not reason.startswith("decoded") or reason == "decoded as RGB"
