"""A service whose own method is a preset file: callers get it, and open no file themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service wants discode-eval[serve]")

from discode.decoders._preset import Calibration, Preset, preset_digest  # isort: skip
from discode._judge import load  # isort: skip
from tests.helpers.fake_model import FakeModel  # isort: skip
from tests.helpers.serving import CAT, running  # isort: skip


def test_the_services_own_method_may_be_a_preset_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    text = Preset("smoothing", "unit", Calibration((0.0, 1.0), (1.0, 5.0))).text()
    path.write_text(text, encoding="utf-8")
    digest = preset_digest(text.encode())
    judge = load(FakeModel(), method=str(path))
    own = judge.score(CAT, "a cat")
    with running(judge, method=str(path)) as client:
        path.unlink()  # it was read when the service began
        assert client.get("/v1/models").json["method"] == "mine.json"
        for more in ({}, {"method": ""}, {"method": "mine.json"}):
            answer = client.score(CAT, "a cat", **more).json
            assert answer["signature"] == str(own.signature)
            assert answer["scores"][0]["score"] == float(own) > 1
        assert f"preset={digest}" in answer["signature"]
        assert "preset" not in client.score(CAT, "a cat", method="raw").json["signature"]


def test_callers_open_no_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(Preset("smoothing", "unit").text(), encoding="utf-8")
    with running() as client:
        replies = [
            client.score(CAT, "a cat", method=str(one)) for one in (path, tmp_path / "no.json")
        ]
    assert [reply.status for reply in replies] == [422, 422]
    shapes = {reply.json["error"]["message"].partition("'")[0] for reply in replies}
    assert len(shapes) == 1  # whether a file is there is not told
