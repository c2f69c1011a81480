"""Shared fixtures. Nothing here needs a network; benchmark data is used where it is present."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import discode
from discode.backends.embedded import SHIPPED
from discode.backends.local.load import mend_torchvision
from discode.images import demo_path
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings
from discode.scales import UNIT, Scale

CAPTION = "a close up of a brown striped cat with green eyes"
NO_MODEL = f"no model at {SHIPPED}; training/README.md says how it is made"

# Helpers that import transformers: nothing to collect in them, and it may not be installed.
collect_ignore_glob = ["helpers/tiny_*.py"]


class MendTorchvision:
    """Mends torchvision, if it must be, when it is first wanted: importing torch takes seconds."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(cls)
            mend_torchvision()


sys.meta_path.insert(0, MendTorchvision)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real benchmark data: $DISCODE_DATA, or shared/data beside the checkout."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DISCODE_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"benchmark data is not at {folder}; set DISCODE_DATA")
    return folder


def random_logp(rng: np.random.Generator, n: int, k: int, gap: float = 8.0) -> np.ndarray:
    """Random log-probabilities (n, k) with some mass off the scale."""
    logits = rng.uniform(-gap, 0, size=(n, k))
    logp: np.ndarray = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return logp + np.log(rng.uniform(0.5, 1.0, size=(n, 1)))


@dataclass
class FakeModel:
    """A backend that answers by a fixed rule and keeps a list of what it was asked."""

    name: str = "fake"
    capabilities: frozenset[str] = frozenset()
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    asked: list[str] = field(default_factory=list)
    rejects: str = "\0"

    @property
    def identity(self) -> Identity:
        return Identity(self.name, "r1", "float32")

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        parts = []
        for pair in pairs:
            self.asked.append(pair.caption)
            if self.rejects in pair.caption:
                parts.append(Readings.failed(scale, ["rejected"]))
                continue
            rng = np.random.default_rng(len(pair.caption))
            b, k = len(scale.stems), len(scale.answers)
            parts.append(
                Readings(
                    scale,
                    random_logp(rng, b, k)[None],
                    np.log(np.array([[0.7, 0.2][:b]])),
                    hidden=rng.normal(size=(1, 6)).astype(np.float32) if hidden else None,
                    head=np.eye(k, 6, dtype=np.float32) if hidden else None,
                )
            )
        return Readings.concat(scale, parts)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which training/ has run from data to artefact, on eight pictures."""
    for module in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(module, reason="training and its artefact want discode[dev]")
    from tests.helpers.training_stand_ins import make_build

    folder = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_build(folder, monkeypatch)
        yield folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch: on a busy machine, tiny models are twenty times slower with two."""
    torch = pytest.importorskip("torch", reason="local models are tested with discode[dev]")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The model that ships with the package."""
    if not SHIPPED.is_file():
        pytest.skip(NO_MODEL)
    return SHIPPED


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's name that replays what FakeModel said of one caption of the demo's cat."""
    store = tmp_path_factory.mktemp("recording") / "fake.db"
    discode.load(FakeModel(), store=store).score(demo_path() / "cat.jpg", CAPTION)
    return f"recorded:{store}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the docstrings that load the shipped model where it is missing."""
    for item in items if not SHIPPED.is_file() else ():
        if isinstance(item, pytest.DoctestItem) and item.dtest is not None:
            source = "".join(example.source for example in item.dtest.examples)
            if re.search(r"load\(\)|[eE]mbedded", source):
                item.add_marker(pytest.mark.skip(reason=NO_MODEL))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path
