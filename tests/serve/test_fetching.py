"""Images by URL: what may be fetched, and every way round that we know of."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode._judge import load
from tests.helpers.fake_model import FakeModel
from tests.helpers.servers import PATIENCE
from tests.helpers.serving import CAT, Client, running

from discode._serve.fetching import fetch_image, is_public, resolve_host  # isort: skip
from discode.errors import HttpError


def fetch(url: str, **options: Any) -> bytes:
    return asyncio.run(fetch_image(url, **{"limit": 1 << 20, "seconds": PATIENCE, **options}))


HIDDEN = "nothing could be fetched from there"
"""What is said of all that happens before a public server replies."""
DRIPS = 1000
"""Bytes of an answer that comes one byte at a time."""
PRIVATE = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "169.254.169.254", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "fe80::1%eth0", "fec0::1",
]  # fmt: skip


def test_public_and_other_addresses() -> None:
    assert [address for address in PRIVATE if is_public(address)] == []
    assert all(map(is_public, ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1"]))


@given(st.ip_addresses(v=4))
def test_mapped_addresses_are_what_they_lead_to(address: object) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x.png", "http://localhost/x.png", "http://localhost./x.png",
        "http://2130706433/x.png", "http://0x7f000001/x.png", "http://0177.0.0.1/x.png",
        "http://127.1/x.png", "http://0/x.png", "http://[::1]/x.png",
        "http://[::ffff:127.0.0.1]/x.png", "http://[::ffff:7f00:1]/x.png",
        "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/latest/",
        "http://10.0.0.1:22/", "http://①②⑦.⓪.⓪.①/x.png", "https://192.168.0.1/x.png",
        "file:///etc/passwd", "FILE:///etc/passwd", "ftp://1.1.1.1/x", "gopher://1.1.1.1/x",
        "http://", "http:///x.png", "http://user:pass@1.1.1.1/x.png", "http://1.1.1.1:99999/",
        "http://1.1.1.1/a b", "http://1.1.1.1/a\r\nHost: x", "http://[::1", "//127.0.0.1/x.png",
        "http://" + "a" * 70 + ".example/",
    ],
)  # fmt: skip
def test_urls_that_lead_inside_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(asyncio, "open_connection", never)
    with pytest.raises(HttpError) as caught:
        fetch(url, limit=1000, seconds=2)
    assert caught.value.code == "bad_url"


class Site(http.server.BaseHTTPRequestHandler):
    """Images, redirects, and bad manners."""

    hosts: ClassVar[list[str | None]] = []
    dripped: ClassVar[int] = 0

    def do_GET(self) -> None:
        self.hosts.append(self.headers["host"])
        kind, _, rest = self.path.lstrip("/").partition("/")
        if kind == "to":
            self.head(302, location=rest.replace("_", "/"))
        elif kind == "bare":
            self.head(302)
        elif kind == "length":
            self.head(200, content_length={"odd": "\u00b2", "long": "1" * 5000}[rest])
        elif kind == "loop":
            self.head(301, location="/loop")
        elif kind == "drip":
            self.head(200, content_length=str(DRIPS))
            for Site.dripped in range(1, DRIPS + 1):
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
                time.sleep(0.1)
        elif kind == "cat":
            packed = {"content_encoding": "gzip"} if rest == "packed" else {}
            length = {"content_length": str(len(CAT) + (rest == "cut"))}
            self.head(200, **packed, **({} if rest == "unsized" else length))
            self.wfile.write(CAT)
        else:
            self.send_error(404)

    def head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def site() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"example.test:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def names(host: str, port: int) -> list[str]:
    """A name server that knows one name, on loopback; and the real one."""
    return ["127.0.0.1"] if host == "example.test" else resolve_host(host, port)


def pretend(allowed: list[str]) -> Callable[[str], bool]:
    """Loopback is the open internet once, so that what follows meets the real rule."""

    def public(address: str) -> bool:
        return allowed.pop() == address if allowed else is_public(address)

    return public


def test_an_image_is_fetched_from_the_checked_address() -> None:
    with site() as host:
        for path in ("cat", "cat/unsized", "to/_cat", "to/_to__cat"):
            url, public = f"http://{host}/{path}", "127.0.0.1".__eq__
            assert fetch(url, resolve=names, public=public) == CAT
        assert set(Site.hosts) == {host}


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("to/http:__127.0.0.1:1_x", True),
        ("to/http:__localhost_x", True),
        ("to/http:__2130706433_x", True),
        ("to/http:__[::ffff:7f00:1]_x", True),
        ("to/http:__169.254.169.254_latest", True),
        ("to/_cat", True),  # the name now leads inside: rebinding
        ("to/file:___etc_passwd", False),
        ("nowhere", False),
        ("to/http:__[", False),
        ("bare", False),
        ("length/odd", True),
        ("length/long", True),
        ("cat/packed", False),
        ("cat/cut", True),
    ],
)
def test_redirects_are_checked_like_the_first_url(path: str, hidden: bool) -> None:
    with site() as host, pytest.raises(HttpError) as caught:
        fetch(f"http://{host}/{path}", resolve=names, public=pretend(["127.0.0.1"]))
    assert caught.value.code == "bad_url"
    assert (HIDDEN in str(caught.value)) == hidden


def test_sizes_redirects_and_seconds_are_limited() -> None:
    get = partial(fetch, resolve=names, public=lambda _: True)
    with site() as host:
        for path in ("cat", "cat/unsized"):
            with pytest.raises(HttpError) as caught:
                get(f"http://{host}/{path}", limit=len(CAT) - 1)
            assert caught.value.status == 413
        with pytest.raises(HttpError, match="more than 3 redirects"):
            get(f"http://{host}/loop")
        with pytest.raises(HttpError, match=HIDDEN):
            get(f"http://{host}/drip", seconds=0.5)
        assert Site.dripped < DRIPS, "it was read to its end"
        with pytest.raises(HttpError, match=HIDDEN):  # no TLS spoken there
            get(f"https://{host}/cat")
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(HttpError, match=HIDDEN):
        get(f"https://example.test:{silent.getsockname()[1]}/", seconds=0.3)


def test_one_answer_for_names_that_do_not_resolve_lead_inside_or_refuse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever asks learns nothing of our network; the log tells the three apart."""

    def resolve(host: str, port: int) -> list[str]:
        if host == "nobody.test":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return {"inside.test": ["10.0.0.1"], "both.test": ["1.1.1.1", "127.0.0.1"]}.get(
            host, ["127.0.0.2"]
        )

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = {}
    for name in ("nobody", "inside", "both", "refuses"):
        with pytest.raises(HttpError) as caught:
            fetch(
                f"http://{name}.test:{port}/", resolve=resolve,
                public=lambda address: is_public(address) or address == "127.0.0.2",
            )  # fmt: skip
        said[name] = (caught.value.status, caught.value.code, str(caught.value))
    assert set(said.values()) == {(422, "bad_url", f"the image's URL cannot be used: {HIDDEN}")}
    logged = [record.getMessage() for record in caplog.records]
    for line, word in zip(logged, ("no address", "10.0.0.1", "127.0.0.1", "Refused"), strict=True):
        assert word in line


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running(load(FakeModel()), allow_urls=True) as client:
        yield client


def test_the_service_refuses_them_too(client: Client) -> None:
    own = f"http://127.0.0.1:{client.port}/demo/cat.jpg"
    for url in (own, own.replace("127.0.0.1", "2130706433"), "http://169.254.169.254/latest/"):
        reply = client.score(url, "a cat")
        assert (reply.status, reply.code) == (422, "bad_url"), url
    assert client.score("file:///etc/passwd", "a cat").status == 422
    assert client.get("/v1/models").json["urls"] is True


def test_the_service_fetches_a_public_one(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cat(url: str, *, limit: int, seconds: float) -> bytes:
        return CAT

    monkeypatch.setattr("discode._serve.requests.fetch_image", cat)
    by_url = client.score("http://example.test/cat.jpg", ["a cat"])
    assert by_url.json == client.score(CAT, ["a cat"]).json
