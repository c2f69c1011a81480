"""Shared fixtures. Nothing here needs a network; benchmark data is used where it is present."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

import discode
from discode._extras import mend_torchvision
from discode.backends._embedded import SHIPPED
from discode.images import demo_path
from tests.helpers import missing_extras
from tests.helpers.fake_model import CAPTION, FakeModel
from tests.helpers.once import SHELF, open_shelf
from tests.helpers.shipped import NO_MODEL

# Helpers that import transformers: nothing to collect in them, and it may not be installed.
collect_ignore_glob = ["helpers/tiny_*.py", "helpers/real_*.py"]


class MendTorchvision:
    """Mends torchvision, if it must be, when it is first imported: torch takes seconds."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(cls)
            mend_torchvision()


sys.meta_path.insert(0, MendTorchvision)

# Every run tries the same examples, and none fails because a machine is busy.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# Of the families of local models, those that `make test` runs; the others are for `make full`.
FAMILIES = {"llava_next_llama", "qwen2_vl", "gemma3"}


@pytest.fixture(scope="session", autouse=True)
def shelf(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A place for what is made once per run."""
    open_shelf(pytestconfig, tmp_path_factory)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real benchmark data: $DISCODE_DATA, or shared/data beside the checkout."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DISCODE_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"benchmark data is not at {folder}; set DISCODE_DATA")
    return folder


@pytest.fixture(scope="session")
def training_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which training/ has made its data, of twelve images."""
    for module in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(module, reason="training and its artefact need discode-eval[dev]")
    from tests.helpers.training_stand_ins import fill_data, open_build

    folder = tmp_path_factory.mktemp("training")
    SHELF.copy("training data", folder, fill_data)
    with pytest.MonkeyPatch.context() as monkeypatch:
        open_build(folder, monkeypatch)
        yield folder


@pytest.fixture(scope="session")
def build(training_data: Path) -> Path:
    """The same folder after all of training/, from data to artefact."""
    from tests.helpers.training_stand_ins import fill_build

    return SHELF.copy("training", training_data, fill_build)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch: on a busy machine, tiny models are twenty times slower with two."""
    torch = pytest.importorskip("torch", reason="local models are tested with discode-eval[dev]")
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


def pytest_configure(config: pytest.Config) -> None:
    """Skip what needs an extra that is missing, also in the docstrings of src."""
    config.pluginmanager.register(missing_extras)


def is_long(item: pytest.Item) -> bool:
    """Whether a test is for `make full` by what it uses: a server, a training run, a browser."""
    fixtures = getattr(item, "fixturenames", ())
    family = getattr(item, "callspec", None) and item.callspec.params.get("family")  # type: ignore[attr-defined]
    return (
        "postgres_url" in fixtures
        or "build" in fixtures
        or ("browser" in fixtures and not item.get_closest_marker("page"))
        or (isinstance(family, str) and family not in FAMILIES)
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make full` runs, and skip docstrings that need a shipped model not there."""
    for item in items:
        if is_long(item):
            item.add_marker(pytest.mark.full)
        if isinstance(item, pytest.DoctestItem) and item.dtest is not None:
            source = "".join(example.source for example in item.dtest.examples)
            if not SHIPPED.is_file() and re.search(r"load\(\)|[eE]mbedded", source):
                item.add_marker(pytest.mark.skip(reason=NO_MODEL))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A small red image."""
    path = tmp_path / "image.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path
