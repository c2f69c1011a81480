"""discode serve as a process: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from discode._cli import app, main
from discode.errors import InputError
from tests.helpers.fake_model import CAPTION
from tests.helpers.servers import PATIENCE, in_thread
from tests.helpers.serving import CAT, Client, wait_for

WAITING = """
import os, pathlib, time
from discode.backends import KINDS, Kind
from tests.helpers.fake_model import FakeModel
class Waiting(FakeModel):
    def answer(self, pairs, prompt, scale, *, hidden=False):
        while not pathlib.Path(os.environ["FREE"]).exists():
            time.sleep(0.02)
        return super().answer(pairs, prompt, scale, hidden=hidden)
KINDS["waiting"] = Kind("a model that waits for a file", __name__, "Waiting")
"""


@contextmanager
def process(
    *arguments: str, code: str = "", **env: str
) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    main = f"{code}\nfrom discode._cli import main; main()"
    command = [sys.executable, "-c", main, "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | env | {"NO_COLOR": "1"}
    ) as running:
        try:
            assert running.stderr is not None
            line = ""
            while "http://" not in line:
                line = running.stderr.readline()
                assert line, "it ended at once"
            found = re.search(r":(\d+) ", line)
            assert found
            yield Client(int(found[1])), running
        finally:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_it_answers_what_it_took_in_and_refuses_the_rest(number: int, tmp_path: Path) -> None:
    free = tmp_path / "free"
    options = ("--model", "waiting:", "--batch-size", "1")
    with (
        process(*options, code=WAITING, FREE=str(free)) as (client, running),
        ThreadPoolExecutor(3) as pool,
    ):
        asked = [pool.submit(client.score, CAT, f"caption {i}") for i in range(3)]
        wait_for(lambda: client.requests_inside() == 3)
        running.send_signal(number)
        with pytest.raises(ConnectionError):
            wait_for(lambda: client.get("/healthz").status != 200)
        free.touch()
        assert [one.result().status for one in asked] == [200] * 3
        assert running.wait(PATIENCE) == 0


def test_a_recording_is_served_with_a_token_from_the_environment(
    recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    served: list[Any] = []
    monkeypatch.setattr(
        "discode._http.server.serve_until_signal", lambda app, listening, **_: served.append(app)
    )
    arguments = ["--port", "0", "--model", recording, "--token-env", "MY_TOKEN", "-m", "raw"]
    typer.main.get_command(app)(["serve", *arguments], standalone_mode=False)
    with in_thread(served[0]) as port:
        client = Client(port)
        assert client.score(CAT, CAPTION).status == 401
        reply = client.score(CAT, CAPTION, headers={"authorization": "Bearer secret"})
        assert reply.status == 200
        assert "decoder:raw" in reply.json["signature"]
        assert client.get("/healthz", host="evil.example").status == 421


@pytest.mark.parametrize(
    ("arguments", "token", "place"),
    [
        (["--token-env", "MY_TOKEN"], None, "MY_TOKEN"),
        ([], "", "DISCODE_TOKEN"),
        ([], "x ", "DISCODE_TOKEN"),
        (["--max-captions", "0"], None, "captions=0"),
        (["-m", "no"], None, "'no'"),
        (["-m", "discode:solver=adam"], None, "'adam'"),
        (["--model", "no:such", "--port", "0"], None, "'no'"),
        (["--port", "70000"], None, "70000"),
        (["--host", "no such host"], None, "no such host"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], token: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is not None:
        monkeypatch.setenv("DISCODE_TOKEN", token)
    with pytest.raises(InputError, match=place):
        typer.main.get_command(app)(["serve", *arguments], standalone_mode=False)


def test_a_port_that_is_taken_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["discode", "serve", "--port", port])
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(said.strip().splitlines()) == 1
    assert said.startswith(f"discode: cannot listen on 127.0.0.1:{port}")
