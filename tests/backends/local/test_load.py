"""Opening a local model: what it weighs, what is broken, where the hub is, what is tried first."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import discode
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode._scores import Scores
from discode.backends._local import hub, memory, packed
from discode.backends._local.backend import Local
from discode.backends._local.calibrate import calibrate
from discode.backends._local.gpu.fused import use_attention
from discode.backends._local.load import LocalOptions, _load_weights, folder_digest, open_model
from discode.backends._local.packing import find_places
from discode.bulk import Totals, plan_run, score_to_folder
from discode.errors import InputError, MissingExtraError, install_hint
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_image, run_python
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS


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


def _without(*names: str) -> Any:
    def change(folder: Path) -> None:
        for name in names:
            for path in folder.glob(name):
                path.unlink()

    return change


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _configured(**settings: Any) -> Any:
    def change(folder: Path) -> None:
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | settings))

    return change


def _stored(content: bytes) -> Any:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _lacking(part: str) -> Any:
    def change(folder: Path) -> None:
        weights = folder / "model.safetensors"
        kept = {name: x for name, x in load_file(weights).items() if part not in name}
        save_file(kept, weights, {"format": "pt"})

    return change


def _with_rows_less(part: str) -> Any:
    def change(folder: Path) -> None:
        weights = folder / "model.safetensors"
        cut = {n: x[1:].contiguous() if part in n else x for n, x in load_file(weights).items()}
        save_file(cut, weights, {"format": "pt"})

    return change


def _templated(text: str) -> Any:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_without("config.json"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "model"),
        (_without("tokenizer*"), "tokenizer"),
        (_without("tokenizer.json"), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "tokenizer_config"),
        (_without("*processor_config.json"), "preprocessor_config.json"),
        (_without("chat_template*"), "chat_template"),
        (_without("model.safetensors"), ".safetensors"),
        (_pickled, "pytorch_model.bin"),
        (_configured(auto_map={"AutoModel": "modeling.Model"}), "trust_remote_code"),
        (_configured(model_type="llama"), "'llama'"),
        (_configured(text_config={"hidden_size": 64}), "model"),
        (_stored(b"version https://git-lfs.github.com/spec/v1\noid"), "model.safetensors"),
        (_stored(struct.pack("<Q", 10) + b"{broken}  "), "model.safetensors"),
        (_cut, "model.safetensors"),
        (_lacking("q_proj"), "q_proj"),
        (_with_rows_less("k_proj"), "k_proj"),
        (_templated("{% broken"), "chat template"),
        (_templated("{{ raise_exception('no images please') }}"), "no images please"),
    ],
)
def test_folders_that_cannot_judge(llava: Path, tmp_path: Path, change: Any, place: str) -> None:
    folder = shutil.copytree(llava, tmp_path / "model")
    change(folder)
    with pytest.raises(InputError, match=place) as caught:  # weights are loaded for a reading
        discode.load(folder, device="cpu").score(noise_image(), "a dog")
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_loaded_are_tried_once(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(llava, tmp_path / "model")
    _lacking("q_proj")(folder)
    judge, tried = discode.load(folder, device="cpu"), list[str]()

    def load(name: str, *rest: Any) -> Any:
        tried.append(name)
        return _load_weights(name, *rest)

    monkeypatch.setattr("discode.backends._local.load._load_weights", load)
    for _ in range(2):
        with pytest.raises(InputError, match="q_proj"):
            judge.score(noise_image(), "a dog")
    assert tried == [str(folder)]
    code = "import discode, sys; discode.load(sys.argv[1]).score(sys.argv[2], 'a dog')"
    noise_image().save(tmp_path / "a.png")
    done = run_python(code, folder, tmp_path / "a.png")
    assert "q_proj" in done.stderr.splitlines()[-1]
    assert "MISSING" not in done.stderr  # transformers' table of them


def test_what_is_finished_or_stored_needs_no_weights(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_image().save(tmp_path / "a.png")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("image,caption\na.png,a dog\na.png,a cat\n")

    def run() -> tuple[Totals, Scores]:
        judge = discode.load(llava, device="cpu", read="forced", store=tmp_path / "said.db")
        plan = plan_run([pairs], tmp_path / "out", images=tmp_path)
        return score_to_folder(judge, plan), judge.score(tmp_path / "a.png", "a dog")

    totals, scores = run()
    assert totals.rows == 2
    assert not totals.failed
    monkeypatch.setattr(
        "discode.backends._local.load._load_weights", lambda *_: pytest.fail("read")
    )
    again, stored = run()
    assert again == totals
    assert stored.value == scores.value
    assert stored.signature == scores.signature


def test_weights_that_changed_since_a_model_was_opened(llava: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llava, tmp_path / "model")
    judge = discode.load(folder, device="cpu")
    weights = folder / "model.safetensors"
    save_file({k: x + 1 for k, x in load_file(weights).items()}, weights, {"format": "pt"})
    with pytest.raises(InputError, match=re.escape(str(folder))):
        judge.score(noise_image(), "a dog")


def test_each_thread_has_its_own_attention() -> None:
    """Two models run in two threads; transformers looks attentions up by a name for all."""
    configs = [transformers.LlamaConfig(attn_implementation="sdpa") for _ in range(2)]
    inside, done = Event(), Event()

    def other() -> Any:
        with use_attention(configs[1], lambda: "second"):
            inside.set()
            done.wait()
            return transformers.AttentionInterface()[configs[1]._attn_implementation]()

    with ThreadPoolExecutor(1) as threads, use_attention(configs[0], lambda: "first"):
        second = threads.submit(other)
        inside.wait()
        first = transformers.AttentionInterface()[configs[0]._attn_implementation]()
        done.set()
        assert (first, second.result()) == ("first", "second")
    assert {config._attn_implementation for config in configs} == {"sdpa"}


def test_weights_are_loaded_once_for_all_threads(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, loaded, both = Local(llava, device="cpu"), list[str](), Event()

    def load(name: str, *more: Any) -> Any:
        loaded.append(name)
        both.wait()  # until the second thread has begun
        return _load_weights(name, *more)

    monkeypatch.setattr("discode.backends._local.load._load_weights", load)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: backend.runner)
        second = threads.submit(lambda: both.set() or backend.runner)  # type: ignore[func-returns-value]
        assert first.result() is second.result()
    assert loaded == [str(llava)]


def test_a_service_loads_its_model_before_it_is_asked(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = pytest.importorskip("discode._serve.app", reason="it wants discode-eval[serve]")
    judge = discode.load(llava, device="cpu")
    monkeypatch.setattr("discode.backends._local.load._load_weights", lambda *_: 1 / 0)
    with pytest.raises(InputError, match=re.escape(str(llava))):
        service.make_service(judge)


def test_a_folder_is_known_by_what_it_holds(llava: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llava, folder)
    first = folder_digest(folder)
    assert (
        first == folder_digest(llava) == open_model(str(llava), LocalOptions(device="cpu")).revision
    )
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert folder_digest(folder) != first
    (folder / "large.safetensors").write_bytes(bytes(3_000_000))
    second = folder_digest(folder)
    (folder / "large.safetensors").write_bytes(bytes(2_999_999) + b"1")
    assert folder_digest(folder) != second


def test_every_file_of_a_tokenizer_counts_for_the_digest(tmp_path: Path) -> None:
    """Whatever the tokenizers of the installed transformers name, and Qwen's own."""
    names = {"qwen.tiktoken"}
    for file in Path(transformers.__file__).parent.rglob("tokenization_*.py"):
        found = re.search(r"VOCAB_FILES_NAMES\s*=\s*{(.*?)}", file.read_text("utf-8"), re.DOTALL)
        names.update(re.findall(r':\s*"([^"]+)"', found[1]) if found else ())
    assert {"merges.txt", "vocab.txt", "tokenizer.json", "tokenizer.model"} <= names
    digests = {folder_digest(tmp_path)}
    for name in sorted(names):
        (tmp_path / name).write_text("a b\n")
        digests.add(folder_digest(tmp_path))
        (tmp_path / name).write_text("b a\n")
        digests.add(folder_digest(tmp_path))
    assert len(digests) == 1 + 2 * len(names)


def test_a_model_that_does_not_fit_is_not_loaded(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = memory.weight_bytes(memory.weight_files(llava), "float32")
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(needed) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "discode.backends._local.load._load_weights", lambda *_: pytest.fail("loaded")
        )
        judge = discode.load(llava, device="cpu")
        with pytest.raises(InputError, match="float32") as caught:
            judge.score(noise_image(), "a dog")
    for advice in ("dtype='bfloat16'", "quantize='4bit'", "device_map='auto'"):
        assert advice in str(caught.value)
    assert str(caught.value).count(f"{needed / 1e6:.2f} MB") == 2
    assert Local(llava, device="cpu", dtype="bfloat16").runner  # half of it fits


def test_quantising_wants_its_extra(llava: Path) -> None:
    if importlib.util.find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(MissingExtraError, match=re.escape(install_hint("quantize"))):
        discode.load(llava, device="cpu", quantize="4bit")


def test_free_memory(tmp_path: Path) -> None:
    free = memory.free_bytes("cpu")
    if Path("/proc/meminfo").exists():
        assert free is not None
        assert 0 < free < 2**50
    assert memory.free_bytes("mps") is None
    assert memory._container_free(tmp_path) is None
    for name, text in (("max", "1000"), ("current", "800"), ("stat", "anon 1\ninactive_file 50\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory._container_free(tmp_path) == 250
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container_free(tmp_path) is None


def test_a_hub_model_is_weighed_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = type("Metadata", (), {"parameter_count": {"BF16": 100, "U8": 10}})
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: counted)
    assert hub.model_bytes("org/name", None, "float32", offline=False) == 410
    assert hub.model_bytes("org/none-of-this", None, "float32", offline=True) == 0
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: 1 / 0)
    assert hub.model_bytes("org/name", None, "float32", offline=False) == 0


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)


@pytest.mark.usefixtures("no_proxy")
def test_a_hub_that_is_not_there_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", NOWHERE)
    tried: list[Any] = []

    def refuse(address: Any, *_: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(InputError, match=NOWHERE):
        discode.load("some-org/some-model", device="cpu")
    assert tried == [("127.0.0.1", 9)]  # once; the hub's library would try again and again
    with pytest.raises(InputError, match="some//model//"):
        discode.load("some//model//", device="cpu")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        discode.load("some-org/some-model", device="cpu")


@pytest.mark.usefixtures("no_proxy")
def test_who_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hub.reachable(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert not hub.reachable(NOWHERE)
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy"})
    assert hub.reachable("https://example.org")


CACHED = """
import sys
import discode
judge = discode.load("some-org/some-model", device="cpu", read="forced")
print(judge.backend.identity.model, judge.backend.identity.revision)
assert float(judge.score(sys.argv[1], "a dog")) >= 0
"""


@pytest.mark.full
def test_a_model_in_the_cache_loads_without_a_network(llava: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--some-org--some-model"
    shutil.copytree(llava, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    noise_image().save(tmp_path / "photo.png")
    env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": NOWHERE, "https_proxy": "", "http_proxy": ""}
    done = run_python(CACHED, tmp_path / "photo.png", **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["some-org/some-model", f"{commit[:12]}+forced+second"]
    config = cache / "snapshots" / commit / "config.json"
    settings = json.loads(config.read_text()) | {
        "model_type": "their_own",
        "auto_map": {"AutoConfig": "theirs.Config"},
    }
    config.write_text(json.dumps(settings))
    done = run_python(CACHED, tmp_path / "photo.png", **env)
    assert "some-org/some-model contains its own code" in done.stderr


WITHOUT = """
import importlib.util, sys
hidden, folder = sys.argv[1:]
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == hidden else find(name, *more)
sys.modules[hidden] = None
from discode.backends._local.check import check_model
from discode.backends._local.load import LocalOptions, open_model
from discode.errors import MissingExtraError
options = LocalOptions(device="cpu")
for opening in (lambda: open_model(folder, options), lambda: check_model(folder)):
    try:
        opening()
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.parametrize("package", ["torchvision", "num2words"])
@pytest.mark.full
def test_a_package_that_a_processor_needs_is_named_with_its_cure(
    package: str, tmp_path: Path
) -> None:
    folder = make("smolvlm", tmp_path / "smolvlm")
    done = run_python(WITHOUT, package, folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert package in line.lower()
        assert line.endswith(install_hint("hf"))
        assert "on the;" not in line  # transformers' first line ends within a sentence
    file = Path(__file__).parents[3] / "pyproject.toml"
    if file.is_file():
        extra = file.read_text(encoding="utf-8").partition("\nhf = [")[2].partition("\n]")[0]
        assert f'"{package}>=' in extra


def test_a_model_that_cannot_be_packed_says_so(
    llava: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        packed,
        "find_places",
        lambda owner, last: find_places(np.zeros_like(owner), last),
    )  # captions see each other
    assert not Local(llava, device="cpu").runner.packed
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
