"""Opening a local model: what it weighs, what is broken, where the hub is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

import discode
from discode.backends.local import hub, memory
from discode.errors import BackendError, InputError, MissingExtraError

pytest.importorskip("torch", reason="local models want discode[hf]")
pytest.importorskip("transformers", reason="local models want discode[hf]")
pytest.importorskip("torchvision", reason="the picture processors of most families want it")

import huggingface_hub
import torch
import transformers
from safetensors.torch import load_file, save_file

from discode.backends.local.backend import Local
from tests.backends.local.test_bad_input import photo, python
from tests.helpers.tiny_lvlms import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers warns a lot
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llava_next_llama", tmp_path_factory.mktemp("llava") / "llava")


def test_weights_are_weighed_without_being_loaded(llava: Path, tmp_path: Path) -> None:
    tensors = load_file(llava / "model.safetensors")
    count = sum(tensor.numel() for tensor in tensors.values())
    for kind, size in (("float32", 4), ("bfloat16", 2), ("4bit", 0.5), ("8bit", 1)):
        assert memory.weight_bytes(memory.weight_files(llava), kind) == count * size
    parts = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}
    save_file(parts, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(9, dtype=torch.uint8)}, tmp_path / "two.safetensors")
    assert memory.weight_bytes(memory.weight_files(tmp_path), "float16") == 2 * 22 + 9
    # an index says which files count; Mistral's folders hold everything twice
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"c": "two.safetensors"}}))
    assert memory.weight_bytes(memory.weight_files(tmp_path), "float16") == 9


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "no safetensors file"),
        (struct.pack("<Q", 10) + b"{broken}  ", "no safetensors file"),
        (None, "lacks its last 100 bytes"),
    ],
)
def test_half_a_download_is_said_to_be_one(
    llava: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    shutil.copytree(llava, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100] if content is None else content)
    with pytest.raises(InputError, match=words) as caught:
        Local(tmp_path / "model", device="cpu")
    assert "download it again" in str(caught.value)


def test_a_model_that_does_not_fit_is_not_loaded(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = memory.weight_bytes(memory.weight_files(llava), "float32")
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(needed) - 1)
    loading = transformers.AutoModelForImageTextToText.from_pretrained
    monkeypatch.setattr(
        transformers.AutoModelForImageTextToText,
        "from_pretrained",
        lambda *_, **__: pytest.fail("the weights were loaded"),
    )
    with pytest.raises(BackendError, match=r"needs .* in float32, and cpu has .* free") as caught:
        discode.load(llava, device="cpu")
    for advice in ("dtype='bfloat16'", "quantize='4bit'", "device_map='auto'"):
        assert advice in str(caught.value)
    assert str(caught.value).count(f"{needed / 1e6:.2f} MB") == 2
    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", loading)
    assert discode.load(llava, device="cpu", dtype="bfloat16")  # half of it fits


@pytest.mark.parametrize(
    "settings",
    [[], {"text_config": 3}, {"text_config": {"hidden_size": 64}}, {"vision_config": []}],
)
def test_settings_that_cannot_be(llava: Path, tmp_path: Path, settings: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llava, folder)
    config = folder / "config.json"
    whole = json.loads(config.read_text())
    config.write_text(json.dumps(whole | settings if isinstance(settings, dict) else settings))
    with pytest.raises(InputError, match="cannot load") as caught:
        Local(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_quantising_wants_its_extra(llava: Path) -> None:
    if importlib.util.find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(MissingExtraError, match=r"discode\[quantize\]"):
        discode.load(llava, device="cpu", quantize="4bit")


def test_free_memory(tmp_path: Path) -> None:
    free = memory.free_bytes("cpu")
    if Path("/proc/meminfo").exists():
        assert free is not None
        assert 0 < free < 2**50
    assert memory.free_bytes("mps") is None
    assert memory._container(tmp_path) is None
    for name, text in (("max", "1000"), ("current", "800"), ("stat", "anon 1\ninactive_file 50\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory._container(tmp_path) == 250
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container(tmp_path) is None


def test_a_hub_model_is_weighed_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    found = type("Metadata", (), {"parameter_count": {"BF16": 100, "U8": 10}})
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: found)
    assert hub.weight_bytes("org/name", None, "float32", offline=False) == 410
    assert hub.weight_bytes("org/none-of-this", None, "float32", offline=True) == 0

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no such model")

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", refuse)
    assert hub.weight_bytes("org/name", None, "float32", offline=False) == 0


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)


@pytest.mark.usefixtures("no_proxy")
def test_a_hub_that_is_not_there_is_said_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", NOWHERE)
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"{NOWHERE} cannot be reached, and .* local cache"):
        discode.load("some-org/some-model", device="cpu")
    assert time.perf_counter() - start < 5
    with pytest.raises(InputError, match=r"no hub name \(ORG/NAME\)"):
        discode.load("some//model//", device="cpu")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        discode.load("some-org/some-model", device="cpu")


@pytest.mark.usefixtures("no_proxy")
def test_who_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hub.reachable(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert not hub.reachable(NOWHERE)
    # a name server that never answers
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    monkeypatch.setattr(socket, "create_connection", lambda *_: time.sleep(2))
    start = time.perf_counter()
    assert not hub.reachable("https://example.org")
    assert time.perf_counter() - start < 1
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy"})
    assert hub.reachable("https://example.org")


CACHED = """
import sys, time
import discode
start = time.perf_counter()
judge = discode.load("some-org/some-model", device="cpu")
print(judge.backend.identity.model, judge.backend.identity.revision, time.perf_counter() - start)
assert float(judge.score(sys.argv[1], "a dog")) >= 0
"""


def test_a_model_in_the_cache_loads_without_a_network(llava: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--some-org--some-model"
    shutil.copytree(llava, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    photo().save(tmp_path / "photo.png")
    env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": NOWHERE, "https_proxy": "", "http_proxy": ""}
    done = python(CACHED, tmp_path / "photo.png", **env)
    assert done.returncode == 0, done.stderr
    model, revision, seconds = done.stdout.split()
    assert (model, revision) == ("some-org/some-model", commit[:12])
    assert float(seconds) < 20
    config = cache / "snapshots" / commit / "config.json"
    settings = json.loads(config.read_text()) | {
        "model_type": "their_own",
        "auto_map": {"AutoConfig": "theirs.Config"},
    }
    config.write_text(json.dumps(settings))
    done = python(CACHED, tmp_path / "photo.png", **env)
    assert "some-org/some-model brings code of its own" in done.stderr
