"""discode serve as a process: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.conftest import CAPTION
from tests.web.serving import CAT, Client

SLOW = """
import time
from discode.backends import BACKENDS
from tests.conftest import FakeModel
class Slow(FakeModel):
    def read(self, pairs, prompt, scale, *, hidden=False):
        time.sleep(1.0)
        return super().read(pairs, prompt, scale, hidden=hidden)
BACKENDS["slow"] = lambda spec, runtime: Slow()
"""


@contextmanager
def process(
    *arguments: str, code: str = "", **env: str
) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    main = f"{code}\nfrom discode.cli import main; main()"
    command = [sys.executable, "-c", main, "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | env | {"NO_COLOR": "1"}
    ) as running:
        try:
            assert running.stderr is not None
            line = ""
            while " judges at " not in line:
                line = running.stderr.readline()
                assert line, "it ended at once"
            found = re.search(r":(\d+) ", line)
            assert found
            yield Client(int(found[1])), running
        finally:
            running.kill()


def refused(*arguments: str, **env: str) -> str:
    code = "from discode.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", *arguments],
        capture_output=True, text=True, timeout=30, env=os.environ | env,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_it_answers_what_it_took_in_and_refuses_the_rest(number: int) -> None:
    with (
        process("--model", "slow:", "--batch-size", "2", code=SLOW) as (client, running),
        ThreadPoolExecutor(6) as pool,
    ):
        assert client.get("/healthz").status == 200
        asked = [pool.submit(client.score, CAT, f"caption {i}") for i in range(6)]
        time.sleep(0.6)  # two are being read, four wait
        running.send_signal(number)
        time.sleep(0.3)
        with pytest.raises(OSError, match="refused|reset"):
            client.get("/healthz")
        assert [one.result().status for one in asked] == [200] * 6
        assert running.wait(10) == 0


def test_a_recording_is_served_with_a_token_from_the_environment(recording: str) -> None:
    arguments = ("--model", recording, "--token-env", "MY_TOKEN", "-m", "raw")
    with process(*arguments, MY_TOKEN="secret") as (client, _):
        assert client.score(CAT, CAPTION).status == 401
        reply = client.score(CAT, CAPTION, headers={"authorization": "Bearer secret"})
        assert reply.status == 200
        assert "decoder:raw" in reply.json["signature"]
        assert client.get("/healthz", host="evil.example").status == 421


def test_mistakes_are_one_line() -> None:
    assert "MY_TOKEN" in refused("--token-env", "MY_TOKEN")
    assert "blank" in refused(DISCODE_TOKEN="")
    assert "blank" in refused(DISCODE_TOKEN="x ")
    assert "captions=0" in refused("--max-captions", "0")
    assert "unknown method" in refused("-m", "no")
    assert "not served" in refused("-m", "discode:solver=adam")
    assert "unknown model" in refused("--model", "no:such")
    assert "cannot listen" in refused("--port", "70000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refused("--port", port)
