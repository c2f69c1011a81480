"""Advice on how to run a model, from its configuration alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from discode.backends._local.advise import Machine, advise, advise_all
from discode.backends._local.catalog import CATALOG
from discode.errors import InputError
from tests.helpers.command_line import call, refused
from tests.helpers.local_models import LOCAL_MODEL_MARKS

pytestmark = LOCAL_MODEL_MARKS
QWEN2_5_VL_72B: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "vocab_size": 152064,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "torch_dtype": "bfloat16",
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3456, "num_heads": 16,
        "out_hidden_size": 8192, "fullatt_block_indexes": [7, 15, 23, 31],
    },
}  # fmt: skip


def folder_of(settings: dict[str, Any], folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_a_model_of_72_billion_parameters(tmp_path: Path) -> None:
    name = folder_of(QWEN2_5_VL_72B, tmp_path)
    rows = {gb: advise(name, None, Machine(1, gb * 1e9)) for gb in (24, 80, 192)}
    assert "73.4 B parameters" in rows[24]["model"]
    assert "146.8 GB in 16 bit" in rows[24]["weights"]
    assert "0.33 MB per token" in rows[24]["cache"]
    assert "endpoint:" in rows[24]["advice"]
    assert "quantize=4bit" in rows[80]["advice"]
    assert rows[192]["advice"] == f"--model {name}"
    several = advise(name, None, Machine(4, 80e9))
    assert several["advice"] == f"--model vllm:{name} -M tensor_parallel_size=4"
    assert "tensor_parallel_size=2" in advise(name, None, Machine(2, 141e9))["advice"]
    old = advise(name, None, Machine(8, 80e9, "float16"))
    assert old["advice"].endswith("-M dtype=float16")
    assert "endpoint:" in advise(name, None, Machine(0, 0.0))["advice"]


def test_weights_that_are_quantised_already(tmp_path: Path) -> None:
    settings = QWEN2_5_VL_72B | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    rows = advise(folder_of(settings, tmp_path), None, Machine(1, 80e9))
    assert "41.1 GB as stored" in rows["weights"]
    assert rows["advice"] == f"--model vllm:{tmp_path}"


def test_a_small_model_without_a_gpu(llava: Path) -> None:
    rows = advise(str(llava), None, Machine(0, 0.0))
    assert "dtype=float32" in rows["advice"]


def test_the_command(llava: Path) -> None:
    done = call("models", "--advise", llava, "--gpu-memory", 24)
    assert "GPU with 24.0 GB" in done.stdout
    assert llava.name in done.stdout
    assert call("models", "--advise", f"vllm:{llava}").stdout.startswith("model")
    for wrong in (
        ("--gpu-memory", 24), ("--advise", "embedded"), ("--advise", "vllm:"), (llava,),
        ("--advise", "--check", llava), ("--advise", "-M", "revision=v2"), ("--check",),
    ):  # fmt: skip
        refused(call("models", *wrong))


def test_listed_models() -> None:
    done = call("models", "--advise", "--gpu-memory", 80)
    lines = {name: way for name, *way in map(str.split, done.stdout.splitlines()[3:-2])}
    assert lines["Qwen/Qwen2.5-VL-7B-Instruct"] == ["NAME"]
    assert lines["llava-hf/llava-next-72b-hf"] == ["NAME", "-M", "quantize=4bit"]
    assert not lines.keys() & {row.hub for row in CATALOG if not row.opens}


def test_listed_models_and_their_configuration(tmp_path: Path) -> None:
    name = folder_of(QWEN2_5_VL_72B, tmp_path)
    for machine in (Machine(n, gb * 1e9) for n in (1, 2, 4, 8) for gb in (24, 80, 141, 192)):
        way = advise(name, None, machine)["advice"].partition(": ")[0].replace(name, "NAME")
        assert way == f"--model {advise_all(machine)['Qwen/Qwen2-VL-72B-Instruct']}"


def test_a_model_without_images(tmp_path: Path) -> None:
    name = folder_of({"model_type": "llama"}, tmp_path)
    with pytest.raises(InputError, match="does not take images"):
        advise(name, None, Machine(1, 80e9))
