"""A tiny LLaVA-NeXT that most tests of local models open."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

if not all(map(find_spec, ("torch", "transformers", "torchvision"))):
    collect_ignore_glob = ["test_*.py"]  # local models need discode-eval[hf]


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder; a test that changes it works on a copy."""
    from tests.helpers.tiny_lvlms import make  # imports transformers

    return make("llava_next_llama", tmp_path_factory.mktemp("llava") / "llava")
