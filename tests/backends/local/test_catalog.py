"""The list of models says what was tried with each."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="local models need discode[hf]")
pytest.importorskip("transformers", reason="local models need discode[hf]")
pytest.importorskip("torchvision", reason="the image processors of most models need it")

from discode.backends.local.catalog import CATALOG
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED
from tests.helpers.tiny_remote.make import PACKED as REMOTE


def test_the_catalog_says_what_was_tried() -> None:
    tiny = {name.removesuffix("_short_window") for name in FAMILIES}
    for row in CATALOG:
        tried = any(name.startswith(row.kind) for name in tiny)
        stand_in = next((name for name in REMOTE if row.kind.startswith(name)), None)
        assert row.remote == (stand_in is not None), row.hub
        assert row.tested == ("tiny" if tried else "stand-in" if stand_in else ""), row.hub
        packed = REMOTE[stand_in] if stand_in else tried and row.kind not in UNPACKED
        assert row.packed == packed, row.hub
    assert sum(bool(row.paper) for row in CATALOG) == 10
    assert [row.hub for row in CATALOG if "default" in row.note] == ["llava-hf/llava-next-72b-hf"]
