"""What ``discode models --check`` says of a model whose weights are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from discode.backends._local import hub, memory
from discode.backends._local.check import SMALL_FILES, check_model
from discode.errors import InputError
from tests.helpers import tiny_internvl, tiny_lvlms
from tests.helpers.command_line import refused, run
from tests.helpers.local_models import LOCAL_MODEL_MARKS
from tests.helpers.tiny_remote.make import make as make_remote

pytestmark = LOCAL_MODEL_MARKS
NUMBER, SPACE, UNCLEAR = "the number, after", "a space, after", "the number or a space, after"


def check(folder: Path, *, weights: bool = False) -> tuple[str, str, str, str]:
    """What is said of a folder; its weights are removed and yet weighed."""
    files = memory.weight_files(folder)
    size = memory.gigabytes(memory.weight_bytes(files, "bfloat16"))
    for path in () if weights else files:
        path.unlink()
    _, route, captions, start, tokens, weighed = check_model(str(folder)).values()
    assert weighed.startswith(f"{size} in bfloat16")
    return route, captions, start, tokens


@pytest.mark.parametrize("family", tiny_lvlms.FAMILIES)
def test_every_family_is_known_without_its_weights(family: str, tmp_path: Path) -> None:
    route, captions, start, tokens = check(tiny_lvlms.make(family, tmp_path))
    tried = family != "mllama"  # no row of the catalog
    plain = "plain:" if family in tiny_lvlms.UNPACKED else "packed:"
    assert captions.startswith(plain if tried else "no 'mllama' model was tested")
    assert route == "by transformers, without its own code"
    assert "0 ." in tokens
    begins = NUMBER
    if family in ("llava", "llava_next_vicuna", "idefics3", "smolvlm"):
        begins = SPACE
    elif family in ("llava_next_mistral", "mistral3", "aya_vision"):  # as tiny ones are written
        begins = UNCLEAR
    assert start.startswith(begins)
    llama3 = family in ("llava_next_llama", "idefics3", "llama4", "mllama")
    assert ("1 token each" not in tokens) == llama3


@pytest.mark.parametrize("language", ["internlm2", "qwen2"])
def test_internvl_in_its_original_layout(language: str, tmp_path: Path) -> None:
    route, captions, start, tokens = check(tiny_internvl.make(tmp_path / "model", language))
    assert "converted" in route
    assert captions.startswith("packed:")
    assert start.startswith(NUMBER)
    assert ("85" in tokens) == (language == "internlm2")


@pytest.mark.parametrize(
    ("family", "adapter", "captions"),
    [("cogvlm", "CogVLM", "plain:"), ("minicpmv", "MiniCPMV", "packed:")],
)
def test_code_of_its_own_is_not_run(
    family: str, adapter: str, captions: str, tmp_path: Path
) -> None:
    folder = make_remote(family, tmp_path / "model")
    for path in folder.glob("*.py"):
        path.write_text("raise SystemExit('this code was run')")
    route, shared, *_ = check(folder, weights=True)
    assert f"(-M trust_remote_code=true) and the adapter {adapter}" in route
    assert shared.startswith(captions)


def _settings(folder: Path, **changed: Any) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changed))


def _molmo(folder: Path) -> None:
    _settings(folder, model_type="molmo", auto_map={"AutoModel": "m.M"}, architectures=["Molmo"])


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "config.json").write_text("[]"),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        _molmo,
    ],
)
def test_what_cannot_judge_is_said_in_one_line(llava: Path, tmp_path: Path, change: Any) -> None:
    folder = shutil.copytree(llava, tmp_path / "model")
    change(folder)
    with pytest.raises(InputError, match=str(folder)) as caught:
        check_model(str(folder))
    assert "\n" not in str(caught.value)


def test_only_small_files_are_downloaded(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is replaced by a folder that gives what the patterns ask for."""
    asked: list[Any] = []

    def download(name: str, *, allow_patterns: list[str], **where: Any) -> str:
        asked.append((name, where))
        for pattern in allow_patterns:
            for path in llava.glob(pattern):
                shutil.copy(path, tmp_path)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(hub, "must_use_cache", lambda name, revision: False)
    monkeypatch.setattr(hub, "model_bytes", lambda *_, **__: 0.0)
    *_, weighed = check_model("org/model", "v2").values()
    assert asked == [("org/model", {"revision": "v2", "local_files_only": False})]
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".jinja"}
    size = memory.weight_bytes(memory.weight_files(llava), "bfloat16")
    assert weighed.startswith(memory.gigabytes(size))
    assert not any(
        pattern.endswith(("*", ".bin", ".safetensors", ".py")) for pattern in SMALL_FILES
    )


def test_the_command(llava: Path, tmp_path: Path) -> None:
    shown = run("models", "--check", llava)
    assert shown.returncode == 0, shown.stderr
    for words in ("llava_next", "packed", "0 ., 1 .", "in bfloat16"):
        assert words in shown.stdout
    refused(run("models", "-M", "revision=v2"), "--check")
    lost = run("models", "--check", "org/name", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    refused(lost, "HF_HUB_OFFLINE", "org/name")


@pytest.mark.data
def test_the_real_size_of_a_real_model(data: Path, tmp_path: Path) -> None:
    """InternVL-2.5-8B: its real tokenizer, and the settings that its model card implies."""
    tokenizer = data / "tokenizers" / "internlm2"
    if not tokenizer.is_dir():
        pytest.skip(f"the real tokenizers are not at {tokenizer.parent}")
    folder = tiny_internvl.make(tmp_path / "model", "internlm2")
    (folder / "model.safetensors").unlink()
    for path in tokenizer.iterdir():
        shutil.copy(path, folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["llm_config"] |= {
        "vocab_size": 92553, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    settings["vision_config"] |= {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 448, "patch_size": 14,
    }  # fmt: skip
    _settings(folder, **settings | {"force_image_size": 448})
    *_, start, tokens, weighed = check_model(str(folder)).values()
    assert float(weighed.split()[0]) / 2 == pytest.approx(8.08, abs=0.04)
    assert "up to 111 tokens each" in tokens
    assert start == f"{NUMBER} 'im_start|>assistant\\n'"
