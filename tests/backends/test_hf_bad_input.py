"""Local models and what goes wrong: bad pictures, short memory, no network, half a model."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discode
from discode.backends import hub, memory
from discode.errors import BackendError, InputError
from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT

pytest.importorskip("torch", reason="local models want discode[hf]")
pytest.importorskip("transformers", reason="local models want discode[hf]")
pytest.importorskip("torchvision", reason="the picture processors of most families want it")

import huggingface_hub
import torch
import transformers
from safetensors.torch import load_file, save_file

from discode.backends.hf import Local
from tests.backends.tiny_lvlms import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # transformers warns a lot
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module", params=["llava_next_llama", "qwen2_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp("tiny") / request.param)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llava_next_llama", tmp_path_factory.mktemp("llava") / "llava")


def photo(width: int = 90, height: int = 60, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


def encoded(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def apart(a: Any, b: Any) -> float:
    pairs = [(a.answer_logp, b.answer_logp), (a.stem_logp, b.stem_logp)]
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def test_what_is_seen_counts_not_how_it_is_stored(folder: Path) -> None:
    """Every odd file gives what the same picture, decoded by hand, gives."""
    seen = photo()
    sideways = Image.Exif()
    sideways[0x0112] = 6
    grey = np.asarray(seen.convert("L"))
    half = seen.convert("RGBA")
    half.putalpha(128)
    cmyk = encoded(seen.convert("CMYK"), "JPEG", quality=95)
    gif = encoded(seen, "GIF", save_all=True, append_images=[photo(seed=1)])
    on_white = (np.asarray(seen, np.float64) * 128 + 255.0 * 127) / 255
    cases: dict[str, tuple[bytes, Image.Image, float]] = {
        "cmyk": (cmyk, Image.open(io.BytesIO(cmyk)).convert("RGB"), 1e-5),
        "alpha": (encoded(half), Image.fromarray(on_white.round().astype(np.uint8)), 0.05),
        "16 bit": (
            encoded(Image.fromarray(grey.astype(np.uint16) * 257)),
            Image.fromarray(grey).convert("RGB"),
            1e-5,
        ),
        "turned": (
            encoded(seen.transpose(Image.Transpose.ROTATE_90), exif=sideways),
            seen,
            1e-5,
        ),
        "animated": (gif, Image.open(io.BytesIO(gif)).convert("RGB"), 1e-5),
        "one pixel": (
            encoded(Image.new("RGB", (1, 1), "red")),
            Image.new("RGB", (8, 8), "red"),
            1e-5,
        ),
    }
    backend = Local(folder, device="cpu", read="forced")
    stored = backend.read([Pair(file, "a dog") for file, _, _ in cases.values()], FLEUR, UNIT)
    by_hand = backend.read([Pair(image, "a dog") for _, image, _ in cases.values()], FLEUR, UNIT)
    assert not stored.errors
    for row, (name, (_, _, tolerance)) in enumerate(cases.items()):
        assert apart(stored.take([row]), by_hand.take([row])) < tolerance, name


def test_bad_pictures_fail_their_own_rows(folder: Path, tmp_path: Path) -> None:
    good, strip = encoded(photo()), encoded(photo(3000, 10))
    half = tmp_path / "half.png"
    half.write_bytes(good[: len(good) // 2])
    pictures: dict[str, Any] = {
        "good": good,
        "half": half,
        "empty": b"",
        "strip": strip,
        "text": b"not a picture",
        "other": encoded(photo(seed=1)),
        "missing": tmp_path / "none.png",
    }
    captions = ["a dog runs", "a cat"]
    images = [image for image in pictures.values() for _ in captions]
    judge = discode.load(folder, device="cpu")
    scores = judge.score(images, captions * len(pictures))
    reasons = {"half": "truncated", "empty": "no picture", "text": "no picture", "missing": "read"}
    if folder.name == "qwen2_vl":  # Qwen's own bound
        reasons["strip"] = "processor refuses the picture: absolute aspect ratio"
    for row, name in enumerate(name for name in pictures for _ in captions):
        assert np.isnan(scores.value[row]) == (name in reasons), name
        assert reasons.get(name, "") in scores.errors.get(row, "")
        assert "\n" not in scores.errors.get(row, "")
    for name in ("good", "other"):  # and stand where they were asked for
        row = list(pictures).index(name) * 2
        alone = judge.score(pictures[name], captions)
        assert np.abs(alone.value - scores.value[row : row + 2]).max() < 1e-4


BOMB = """
import sys
from pathlib import Path
import discode
def peak():
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    return int(line.split()[1]) * 1024
folder, good, bomb = sys.argv[1:]
judge = discode.load(folder, device="cpu")
judge.score(good, "a dog")
before = peak()
scores = judge.score([good, bomb, good], ["a dog", "a dog", "a cat"])
print(peak() - before, [int(x != x) for x in scores.value], scores.errors[1])
"""


def python(code: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
    )


def test_an_enormous_picture_takes_no_memory(llava: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc on this system to tell the peak of memory")
    good, bomb = tmp_path / "good.png", tmp_path / "bomb.png"
    photo().save(good)
    Image.new("1", (20_000, 20_000)).save(bomb)
    done = python(BOMB, llava, good, bomb)
    assert done.returncode == 0, done.stderr
    grown, rest = done.stdout.split(" ", 1)
    assert int(grown) < 50e6  # decoded, it would be 1.2 GB
    assert rest.startswith("[0, 1, 0] ")
    assert "pixels are over 89478485" in rest


@contextmanager
def memory_for(model: Any, tokens: int) -> Iterator[list[int]]:
    """Run out of memory in the last layer, when all others have filled their caches."""
    seen: list[int] = []

    def look(_: Any, args: Any, kwargs: Any) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        seen.append(states.shape[0] * states.shape[1])
        if seen[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore.")

    hook = model.get_decoder().layers[-1].register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def test_short_of_memory_captions_come_in_smaller_chunks(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Local(folder, device="cpu", read="forced")
    pairs = [Pair(photo(), f"caption {i} " + "word " * (i % 7)) for i in range(60)]
    with memory_for(backend.engine.model, 10**9) as seen:
        whole = backend.read(pairs, FLEUR, UNIT, hidden=True)
    prefix, chunk = seen[0], max(seen[1:])
    assert chunk > 2 * prefix
    with (
        memory_for(backend.engine.model, max(prefix, chunk // 5)) as seen,
        caplog.at_level(logging.WARNING, "discode"),
    ):
        said = backend.read(pairs, FLEUR, UNIT, hidden=True)
    assert len(seen) > 6
    assert not said.errors
    assert apart(said, whole) < 1e-5
    assert said.hidden is not None
    assert whole.hidden is not None
    assert np.abs(said.hidden - whole.hidden).max() < 1e-4
    size = backend.engine.captions_at_once
    assert size is not None
    assert size < 60
    assert f"out of memory; going on with {size} captions at once" in caplog.text


def test_short_of_memory_pictures_come_one_by_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Local(folder, device="cpu", read="forced", images_at_once=4)
    pairs = [Pair(photo(seed=seed), text) for seed in range(9) for text in ("a dog", "a cat")]
    with memory_for(backend.engine.model, 10**9) as seen:
        whole = backend.read(pairs, FLEUR, UNIT)
    alone = seen[0] // 4
    with (
        memory_for(backend.engine.model, int(1.5 * alone)) as seen,
        caplog.at_level(logging.WARNING, "discode"),
    ):
        said = backend.read(pairs, FLEUR, UNIT)
        tries = len([size for size in seen if size > 1.5 * alone])
        again = backend.read(pairs, FLEUR, UNIT)
    assert not said.errors
    assert apart(said, whole) < 1e-5
    assert apart(again, whole) < 1e-5
    assert tries == 2  # with four and with two; then it is known
    assert len([size for size in seen if size > 1.5 * alone]) == tries
    assert backend.engine.captions_at_once is None  # it was not the captions
    assert "going on with 2 pictures at once" in caplog.text
    assert "going on with 1 pictures at once" in caplog.text


def test_a_picture_too_large_for_the_memory_fails_alone(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    small, large = photo(16, 16), photo(48, 16)
    pairs = [Pair(image, text) for image in (small, large, small) for text in ("a dog", "a cat")]
    with memory_for(backend.engine.model, 10**9) as seen:
        whole = backend.read(pairs, FLEUR, UNIT)
    first = seen[0]
    assert max(seen) > first
    with memory_for(backend.engine.model, first):
        said = backend.read(pairs, FLEUR, UNIT)
    assert list(said.errors) == [2, 3]
    for reason in said.errors.values():
        assert reason.startswith("the model ran out of memory with this picture alone: CUDA out of")
        assert "\n" not in reason
    rest = [0, 1, 4, 5]
    assert apart(said.take(rest), whole.take(rest)) < 1e-5
    # the judge goes on, too, and a later run is as quick as ever
    assert backend.engine.captions_at_once is None


def test_a_model_that_fails_without_a_word(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")

    def fail(*_: Any) -> None:
        raise AssertionError

    hook = backend.engine.model.register_forward_pre_hook(fail)
    said = backend.read([Pair(photo(), "a dog")], FLEUR, UNIT)
    hook.remove()
    assert said.errors == {0: "the model failed on this picture: AssertionError"}


def test_no_memory_left_to_run_it(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("discode.backends.engine.Engine._run", fail)
    with pytest.raises(BackendError, match="leaves no memory on cpu to run it"):
        Local(llava, device="cpu")


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
    with pytest.raises(BackendError, match="needs .* in float32, and cpu has .* free") as caught:
        discode.load(llava, device="cpu")
    for advice in ("dtype='bfloat16'", "quantize='4bit'", "device_map='auto'"):
        assert advice in str(caught.value)
    assert str(caught.value).count(f"{needed / 1e6:.2f} MB") == 2
    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", loading)
    assert discode.load(llava, device="cpu", dtype="bfloat16")  # half of it fits


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
