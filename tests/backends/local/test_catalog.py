"""The list of models says what was tried with each."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from discode.backends._local.catalog import CATALOG, STAND_IN, TINY, UNTRIED
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED
from tests.helpers.tiny_remote.make import PACKED as REMOTE


def test_the_catalog_says_what_was_tried() -> None:
    packed = {made().config.model_type: name not in UNPACKED for name, made in FAMILIES.items()}
    for row in CATALOG:
        own = row.kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        stand_in = next((name for name in REMOTE if own and row.kind.startswith(name)), None)
        assert row.remote == (stand_in is not None), row.hub
        if row.tested == UNTRIED:
            assert not row.packed, row.hub
            assert row.note.startswith(("does not open: ", "not tried: ")), row.hub
        elif stand_in is not None:
            assert (row.tested, row.packed) == (STAND_IN, REMOTE[stand_in]), row.hub
        else:
            assert (row.tested, row.packed) == (TINY, packed[row.kind]), row.hub
        # the original layout of the hub is translated (test_internvl), -hf is transformers' own
        original = row.kind == "internvl" and not row.hub.lower().endswith("-hf")
        assert ("original layout" in row.note) == original, row.hub
    assert sum(bool(row.paper) for row in CATALOG) == 10
    assert [row.hub for row in CATALOG if "default" in row.note] == ["llava-hf/llava-next-72b-hf"]
