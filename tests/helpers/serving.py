"""A real server on loopback, and a plain client that speaks HTTP to it."""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from discode._judge import Judge, load
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.errors import ImageError
from discode.images import demo_path, open_image
from discode.readings import Readings
from tests.helpers.fake_model import FakeModel
from tests.helpers.servers import PATIENCE, in_thread

pytest.importorskip("fastapi", reason="the service wants discode-eval[serve]")

from discode._http.guard import LOOPBACK
from discode._serve.app import ServiceOptions, make_service
from discode._serve.limits import Limits

CAT = (demo_path() / "cat.jpg").read_bytes()


@dataclass
class BusyModel(FakeModel):
    """Opens images, notes the batches, fails on a word, and waits while ``free`` is not set."""

    batches: list[list[Pair]] = field(default_factory=list)
    fails_on: str = "\0"
    free: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.free.set()

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        self.batches.append(list(pairs))
        assert self.free.wait(PATIENCE)
        if any(self.fails_on in pair.caption for pair in pairs):
            raise RuntimeError("a model's own bug")
        return Readings.concat(scale, [self._one(pair, prompt, scale) for pair in pairs])

    def _one(self, pair: Pair, prompt: Prompt, scale: Scale) -> Readings:
        try:
            open_image(pair.image)
        except ImageError as error:
            return Readings.failed(scale, [str(error)])
        return super().answer([pair], prompt, scale)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass(frozen=True)
class Client:
    port: int

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: Any) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: Any) -> Reply:
        return self.ask("GET", path, **headers)

    def requests_inside(self) -> int:
        """How many requests are being worked on."""
        found = re.search(rb"^discode_requests_inside (\S+)", self.get("/metrics").body, re.M)
        assert found
        return int(float(found[1]))

    def score(
        self,
        image: Any,
        captions: Any,
        *,
        headers: Any = None,
        path: str = "/v1/score",
        **more: Any,
    ) -> Reply:
        """Ask in JSON; bytes become a data URL."""
        if isinstance(image, bytes):
            image = data_url(image)
        asked = {"image": image, "captions": captions, **more}
        given: dict[str, Any] = {"content_type": "application/json", **(headers or {})}
        return self.ask("POST", path, json.dumps(asked).encode(), **given)

    def upload(
        self,
        image: bytes | Sequence[bytes],
        captions: Sequence[str],
        *,
        path: str = "/v1/score",
        **more: str,
    ) -> Reply:
        """Ask with a form."""
        captions_as = more.pop("captions_as", "captions")
        fields = [(captions_as, caption) for caption in captions] + list(more.items())
        body = b"".join(
            f'--limit\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
            for name, text in fields
        )
        head = 'content-disposition: form-data; name="image"; filename="../../x.jpg"'
        for content in [image] if isinstance(image, bytes) else image:
            body += f"--limit\r\n{head}\r\n\r\n".encode() + content + b"\r\n"
        body += b"--limit--\r\n"
        kind = "multipart/form-data; boundary=limit"
        return self.ask("POST", path, body, content_type=kind)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it never came true")
        time.sleep(0.01)


def data_url(image: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"


@contextmanager
def running(judge: Judge | None = None, **options: Any) -> Iterator[Client]:
    """Serve in a thread; the options are those of the service, with the limits as a dictionary."""
    judge = judge or load(FakeModel())
    limits = Limits(**options.pop("limits", {}))
    app = make_service(judge, ServiceOptions(limits=limits, **{"hosts": LOOPBACK, **options}))
    with in_thread(app) as port:
        yield Client(port)
