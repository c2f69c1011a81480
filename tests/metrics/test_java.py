"""The Java programs of pycocoevalcap: what they are given, what comes back, what is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from discode.errors import BackendError, InputError, MissingExtraError
from discode.metrics import _java as java
from discode.metrics._java import check_spice, meteor, spice, tokenise

pytest.importorskip("pycocoevalcap", reason="text metrics want discode-eval[bench]")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="the tokenizer needs Java"):
        tokenise(["a dog"])
    assert tokenise([]) == []
    assert meteor([]).size == spice([]).size == 0


@needs_java
def test_words_do_not_depend_on_the_neighbours() -> None:
    alone = tokenise(["vitamin A."])
    assert tokenise(["vitamin A.", "xx"])[:1] == alone
    assert tokenise(["vitamin A.", "The man"])[:1] == alone == ["vitamin a"]
    assert tokenise(["", " ", "x"]) == ["", "", "x"]


@needs_java
def test_spice_is_never_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "_folder", lambda module: tmp_path)
    with pytest.raises(InputError, match=r"get_stanford_models"):
        check_spice()


@needs_java
def test_spice_reads_the_f_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pycocoevalcap.spice import spice as module

    class Stub:
        def compute_score(self, gts: dict[int, list[str]], res: dict[int, list[str]]) -> Any:
            if res[0] == ["fail"]:
                raise subprocess.CalledProcessError(1, "java")
            assert sorted(gts) == sorted(res)
            return 0.0, [{"All": {"f": len(res[i][0])}} for i in sorted(res)]

    (tmp_path / "lib").mkdir()
    for suffix in ("", "-models"):
        (tmp_path / "lib" / f"{java._STANFORD}{suffix}.jar").touch()
    monkeypatch.setattr(java, "_folder", lambda module: tmp_path)
    monkeypatch.setattr(module, "Spice", Stub)
    assert spice([("ab", ("x",)), ("abc", ("y",))]).tolist() == [2, 3]
    with pytest.raises(BackendError, match=r"SPICE failed.*Java 8"):
        spice([("fail", ("x",))])
