"""``perf/vllm.py`` without vLLM: its line where vLLM is missing, and its requests over HTTP."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perf import vllm
from tests.helpers.chat_servers import caption, serving

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_one_line_without_vllm(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "perf" / "vllm.py", tmp_path],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 2
    assert not done.stdout
    assert len(done.stderr.splitlines()) == 1


def test_the_engine_gets_every_prompt_once_and_images_lead() -> None:
    groups = [[(image, number) for number in range(3)] for image in "abcd"]
    every = sorted(prompt for group in groups for prompt in group)
    (together,) = vllm.in_order(groups, "together")
    first, rest = vllm.in_order(groups, "lead")
    assert together == every
    assert sorted(first + rest) == every
    assert first == [(image, 0) for image in "abcd"]
    assert vllm.in_order([["a"], ["b"]], "lead") == [["a", "b"]]  # nothing is left to hand over


def test_the_server_gets_the_options_of_the_engine() -> None:
    options = {"enforce_eager": True, "limit_mm_per_prompt": {"image": 1}, "dtype": "bfloat16"}
    assert vllm.flags(options) == [
        "--enforce-eager", "--limit-mm-per-prompt", '{"image": 1}', "--dtype", "bfloat16",
    ]  # fmt: skip
    assert dict(map(vllm.parse_option, ("seed=1", "dtype=half"))) == {"seed": 1, "dtype": "half"}


@pytest.mark.parametrize("order", ["together", "lead", "own"])
def test_each_pair_is_asked_over_http(order: str) -> None:
    images, captions = 3, 4
    with serving() as server:
        _, sent, failed = vllm.time_server(server.url, captions, images, order)
        paths = server.paths.total()
        asked = [(caption(body), shown(body)) for body in server.asked if caption(body)]
    assert not failed
    assert sent == paths
    assert len(set(asked)) == len(asked) == images * captions * (1 + vllm.REPEATS)
    assert len({url for _, url in asked}) == images * (1 + vllm.REPEATS)  # none is seen again
    if order == "lead":
        leading = asked[:images]
        assert {text for text, _ in leading} == {f"{vllm.CAPTION} 0"}
        assert len({url for _, url in leading}) == images


def shown(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"][0]["image_url"]["url"])
