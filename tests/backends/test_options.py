"""Model options: declared by the backend that takes them, the same from every entrance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from discode._cli.flags import model_options
from discode.backends import KINDS, kind_of, open_backend
from discode.backends._served.client import Prices
from discode.errors import InputError, UnknownNameError


def test_declaring_options_imports_no_extra() -> None:
    code = (
        "import sys, discode.backends._local.backend, discode.backends._served.backend; "
        "print({'torch', 'transformers', 'huggingface_hub', 'accelerate'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("model", "options", "place"),
    [
        ("embedded", {"thread": 1}, "'threads'"),
        ("embedded", {"device": "cpu"}, "the embedded model .*'device'"),
        ("recorded:x.db", {"threads": 2}, "a recording .*'threads'"),
        ("endpoint:x", {}, "base_url"),
        ("endpoint:x", {"base_url": "http://x/v1", "top": "many"}, "top=many"),
        ("openai:x", {"base_url": "http://x/v1"}, "openai:.*'base_url'"),
        ("openai:", {}, "after the colon"),
        ("a/b", {"trust_remote_code": "perhaps"}, "trust_remote_code=perhaps"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    model: str, options: dict[str, object], place: str
) -> None:
    with pytest.raises(InputError, match=place):
        open_backend(model, options)


def test_what_was_not_given_is_none_and_strings_are_converted(shipped: Path) -> None:
    backend = open_backend("embedded", {"threads": "2", "device": None})
    assert backend.identity.model == "discode-embedded"
    prices = Prices(1.0, 2.0)
    for text in ("1,2", (1, 2), prices):
        assert KINDS["endpoint"].check({"rate": "0.5", "top": "40", "prices": text}) == {
            "rate": 0.5, "top": 40, "prices": prices,
        }  # fmt: skip
    assert KINDS["hf"].check({"trust_remote_code": "yes"}) == {"trust_remote_code": True}


def test_names_say_the_kind(tmp_path: Path) -> None:
    for model, about in (
        ("llava-hf/llava-1.5-7b-hf", "a local model"),
        (str(tmp_path), "a local model"),
        ("run.db", "a recording"),
        ("run.db#model", "a recording"),
        ("endpoint:m", "a served model"),
    ):
        assert kind_of(model)[0].about == about
    with pytest.raises(UnknownNameError):
        kind_of("")


def test_flags_and_pairs_agree_or_are_refused() -> None:
    assert model_options(["device=cpu"], device="cpu") == {"device": "cpu"}
    with pytest.raises(InputError, match=r"--base-url .* and -M base_url="):
        model_options(["base-url=b"], base_url="a")
    for bad in (["device"], ["=cpu"], ["a=1", "a=2"]):
        with pytest.raises(InputError, match="-M"):
            model_options(bad)
