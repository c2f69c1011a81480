"""Model options: declared by the backend that takes them, the same from every entrance."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

from discode.backends import KINDS, kind_of, open_backend
from discode.cli.model_options import model_options
from discode.errors import InputError, UnknownNameError


@pytest.mark.parametrize("scheme", [name for name, kind in KINDS.items() if kind.takes])
def test_a_kind_declares_just_what_its_class_takes(scheme: str) -> None:
    kind = KINDS[scheme]
    made = getattr(import_module(kind.module), kind.name)
    hints = get_type_hints(made.__init__)
    parameters = inspect.signature(made).parameters.values()
    taken = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert [*kind.options()] == [name for name in taken if name not in kind.fixed]
    for name, (wanted, about) in kind.options().items():
        assert 0 < len(about) < 80
        assert hints[name] == (wanted if taken[name] is not None else wanted | None)


def test_declaring_options_imports_no_extra() -> None:
    code = (
        "import sys, discode.backends.local.backend, discode.backends.served.backend; "
        "print({'torch', 'transformers', 'huggingface_hub', 'accelerate'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("embedded", {"thread": 1}, r"unknown model option 'thread'; did you mean 'threads'\?"),
        ("embedded", {"device": "cpu"}, "device=cpu is not for the embedded model"),
        ("recorded:x.db", {"threads": 2}, "threads=2 is not for a recording"),
        ("endpoint:x", {}, "needs base_url"),
        ("endpoint:x", {"base_url": "http://x/v1", "top": "many"}, "top='many' .* whole number"),
        ("endpoint:x", {"base_url": "http://x/v1", "rate": True}, "rate=True .* a number"),
        ("openai:x", {"base_url": "http://x/v1"}, "is not for openai:"),
        ("openai:", {}, "after the colon"),
        ("a/b", {"trust_remote_code": "perhaps"}, "true or false"),
        ("embeded", {}, "did you mean 'embedded'"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    model: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_backend(model, options)


def test_what_was_not_given_is_none_and_strings_are_converted(shipped: Path) -> None:
    backend = open_backend("embedded", {"threads": "2", "device": None})
    assert backend.identity.model == "discode-embedded"
    assert KINDS["endpoint"].check({"rate": "0.5", "top": "40", "prices": "1,2"}) == {
        "rate": 0.5, "top": 40, "prices": "1,2",
    }  # fmt: skip
    assert KINDS["endpoint"].check({"prices": (2.5, 10)}) == {"prices": "2.5,10"}
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
