"""The checks when a model is opened: what its head computes, whether packing is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import discode
from discode.backends.local import forward
from discode.backends.local.backend import Local
from discode.backends.local.calibrate import calibrate
from discode.backends.local.packing import find_places
from discode.errors import InputError
from discode.prompts import FLEUR
from discode.scales import UNIT
from tests.helpers.local_models import LOCAL_MODEL_MARKS

pytestmark = LOCAL_MODEL_MARKS


def test_a_model_that_cannot_be_packed_says_so(
    llava: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        forward,
        "find_places",
        lambda owner, last: find_places(np.zeros_like(owner), last),
    )  # captions see each other
    backend = Local(llava, device="cpu")
    assert not backend.runner.packed
    assert "packed and separate passes differ" in caplog.text


def test_a_head_that_is_no_product_gives_no_hidden_states(llava: Path) -> None:
    backend = Local(llava, device="cpu")
    assert backend.capabilities == {"hidden"}
    head = backend.runner.model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.randn(len(head.weight)), requires_grad=False)
    calibrate(backend.runner, FLEUR, UNIT)
    assert not backend.capabilities
    with pytest.raises(InputError, match="use solver 'exact'"):
        discode.load(backend, method="discode:solver=adam")
