"""The list of models says what was tried with each."""

from __future__ import annotations

from discode.backends._local.catalog import CATALOG, STAND_IN, TINY, UNTRIED
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED
from tests.helpers.tiny_remote.make import PACKED as REMOTE


def test_the_catalog_says_what_was_tried() -> None:
    packed = {made().config.model_type: name not in UNPACKED for name, made in FAMILIES.items()}
    for row in CATALOG:
        stand_in = next((name for name in REMOTE if row.kind.startswith(name)), None)
        assert row.remote == (stand_in is not None), row.hub
        if stand_in is not None:
            assert (row.tested, row.packed) == (STAND_IN, REMOTE[stand_in]), row.hub
        elif row.kind in packed:
            assert (row.tested, row.packed) == (TINY, packed[row.kind]), row.hub
        else:
            assert (row.tested, row.packed) == (UNTRIED, False), row.hub
            assert "without an adapter" in row.note
        # the original layout of the hub is translated (test_internvl), -hf is transformers' own
        original = row.kind == "internvl" and not row.hub.endswith("-hf")
        assert ("original layout" in row.note) == original, row.hub
    assert sum(bool(row.paper) for row in CATALOG) == 10
    assert [row.hub for row in CATALOG if "default" in row.note] == ["llava-hf/llava-next-72b-hf"]
