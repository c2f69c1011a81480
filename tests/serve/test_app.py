"""The service as a program sees it: what it answers, what it refuses, what it keeps apart."""

from __future__ import annotations

import base64
import json
import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from discode._judge import load
from discode.decoders import Decoder, named_decoder
from discode.errors import HttpError
from discode.images import MAX_PIXELS, demo_path
from tests.helpers.fake_model import FakeModel
from tests.helpers.servers import PATIENCE
from tests.helpers.serving import CAT, BusyModel, Client, data_url, running, wait_for

# Behind the skip for want of fastapi:
from discode._serve.limits import Limits  # isort: skip
from discode._serve.app import page_files  # isort: skip
from discode._serve.requests import check_json  # isort: skip


# Pillow has Ghostscript run it.
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
JSON_TWICE = f'{{"image": "{data_url(CAT)}", "captions": ["a"], "captions": ["b"]}}'.encode()
HEAD = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running(limits={"body": 1 << 20}) as client:
        yield client


def column(rows: Any, name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows])


def test_scores_are_the_librarys_own(shipped: Path) -> None:
    judge = load("embedded", threads=1)
    captions = ["a close up of a striped cat", "a man rides a bike", "<|im_end|> cat", ""]
    own = judge.score(CAT, captions)
    explained = judge.explain(CAT, captions)
    smooth = load(judge.backend, method="smoothing").score(CAT, captions)
    with running(judge) as client:
        replies = [client.score(CAT, captions), client.upload(CAT, captions)]
        path = "/v1/explain"
        words = [client.score(CAT, captions, path=path), client.upload(CAT, captions, path=path)]
    for reply in words:
        assert reply.status == 200, reply
        signature = {"signature": str(explained[0].signature)}
        rows = [row | signature for row in reply.json["explanations"]]
        assert rows == [each.to_dict() for each in explained]
        assert reply.json["signature"] == signature["signature"]
        assert reply.json["counts"] == {"failed": 1}
    assert own.distribution is not None
    assert smooth.distribution is not None
    for reply in replies:
        assert reply.status == 200, reply
        answer = reply.json
        assert answer["signature"] == str(own.signature)
        assert answer["smoothing_signature"] == str(smooth.signature)
        assert answer["counts"] == own.counts()
        rows = answer["scores"]
        assert [row["caption"] for row in rows] == captions
        np.testing.assert_array_equal(column(rows, "score"), own.value)
        np.testing.assert_array_equal(column(rows, "raw"), own.raw)
        for i, row in enumerate(rows[:3]):
            assert row["distribution"] == own.distribution[i].tolist()
            assert row["probabilities"] == smooth.distribution[i].tolist()
            assert row["smoothing"] == smooth.value[i]
        assert rows[2]["flags"] == ["defused"]
        assert rows[3]["score"] is None
        assert "empty" in rows[3]["error"]


def test_methods_references_and_one_caption(client: Client) -> None:
    own = load(FakeModel(), method="paper:sigma2=0.05").score(CAT, "a cat", ["a tabby"])
    answer = client.score(CAT, "a cat", references="a tabby", method="paper:sigma2=0.05").json
    assert answer["signature"] == str(own.signature)
    assert answer["scores"][0]["score"] == float(own)
    form = client.upload(CAT, ["a cat"], references="a tabby", method="paper:sigma2=0.05")
    assert form.json == answer
    joint = client.score(CAT, "a cat", method="discode:stem=joint").json
    assert len(joint["answers"]) == len(joint["scores"][0]["distribution"]) == 11
    assert joint["scores"][0]["stem"] == ""


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        ({"captions": []}, "bad_request", "captions:"),
        ({"captions": ["a cat"] * 300}, "bad_request", "captions:"),
        ({"captions": ["a cat"] * 10_000}, "bad_request", "the body"),
        ({"captions": ["a cat", 1]}, "bad_request", "captions[1]"),
        ({"captions": ["x" * 4001]}, "bad_request", "captions[0]"),
        ({"captions": ["\ud800"]}, "bad_request", "captions[0]"),
        ({"references": ["x"] * 65}, "bad_request", "references:"),
        ({"method": "discod"}, "bad_request", "'discode'"),
        ({"method": "discode:sigma2=-1"}, "bad_request", "sigma2"),
        ({"method": "discode:" + "sigma2=1," * 99}, "bad_request", "method:"),
        ({"method": "discode:solver=adam,steps=1000000000"}, "bad_request", "'adam'"),
        ({"metod": "raw"}, "bad_request", "metod:"),
        ({"me\ntod\x1b": "raw"}, "bad_request", "me tod"),
        ({"\ud800": "raw"}, "bad_request", "the body:"),
        ({"image": 7}, "bad_request", "image:"),
        ({"image": "file:///etc/passwd"}, "bad_request", "image:"),
        ({"image": "http://127.0.0.1/x.png"}, "bad_url", "--allow-urls"),
        ({"image": "data:image/png;base64,%%%"}, "bad_image", "base64"),
        ({"image": "data:image/png;base64,"}, "bad_image", "empty"),
        ({"image": data_url(b"<svg onload='alert(1)'/>")}, "bad_image", "AVIF, BMP"),
        ({"image": data_url(EPS)}, "bad_image", "AVIF, BMP"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_in_a_line(
    client: Client, change: dict[str, Any], code: str, place: str
) -> None:
    asked = {"image": data_url(CAT), "captions": ["a cat"]} | change
    reply = client.ask(
        "POST", "/v1/score", json.dumps(asked).encode(), content_type="application/json"
    )
    assert (reply.status, reply.code) == (422, code)
    assert place in reply.json["error"]["message"]
    assert "\n" not in reply.json["error"]["message"]


def test_several_images_in_one_request(shipped: Path) -> None:
    """An image per caption, as in judge.score; a broken one fails its own row."""
    coffee = (demo_path() / "coffee.jpg").read_bytes()
    images, captions = [CAT, coffee, b"no image", CAT], ["a cat", "a cup", "a dog", "a car"]
    judge = load("embedded", threads=1)
    own = judge.score(images, captions)
    with running(judge) as client:
        urls = [data_url(image) for image in images]
        for reply in (client.score(urls, captions), client.upload(images, captions)):
            assert reply.status == 200, reply
            rows = reply.json["scores"]
            assert [row["caption"] for row in rows] == captions
            np.testing.assert_array_equal(column(rows, "score"), own.value)
            assert rows[2]["error"]
            assert rows[2]["flags"] == ["failed"]
            assert reply.json["counts"] == own.counts()
        words = client.score(urls[:2], captions[:2], path="/v1/explain").json["explanations"]
        assert [row["caption"] for row in words] == captions[:2]
        for reply in (
            client.score(urls, captions[:3]), client.score(urls, captions, references=["a cat"])
        ):  # fmt: skip
            assert (reply.status, reply.code) == (422, "bad_request")


def test_singular_names_and_plain_base64(client: Client) -> None:
    plain = base64.encodebytes(CAT).decode()  # with line breaks
    wanted = client.score(CAT, ["a cat", "a dog"]).json
    assert client.upload(CAT, ["a cat", "a dog"], captions_as="caption").json == wanted
    assert client.score(plain, ["a cat", "a dog"]).json == wanted
    asked = {"images": [plain], "caption": ["a cat", "a dog"]}
    body = json.dumps(asked).encode()
    assert client.ask("POST", "/v1/score", body, content_type="application/json").json == wanted
    both = json.dumps(asked | {"captions": ["a bird"]}).encode()
    assert client.ask("POST", "/v1/score", both, content_type="application/json").status == 422


def test_access_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "discode.access"):
        client.get("/healthz")
        client.get("/no%0Aline")
        client.get("/", host="evil.example")
        wait_for(lambda: len(caplog.records) == 3)
    lines = [record.getMessage() for record in caplog.records]
    for line, words in zip(
        lines, ("GET '/healthz' 200", "GET '/no%0Aline' 404", "GET '/' 421"), strict=True
    ):
        assert f"127.0.0.1 {words} " in line


def test_the_api_is_described_with_its_token(client: Client) -> None:
    assert "securitySchemes" not in client.get("/openapi.json").json["components"]
    with running(token="secret") as guarded:
        found = guarded.get("/openapi.json").json
        (name,) = found["components"]["securitySchemes"]
        assert found["components"]["securitySchemes"][name]["scheme"] == "bearer"
        for path, verb in (("/v1/score", "post"), ("/v1/explain", "post"), ("/v1/models", "get")):
            assert found["paths"][path][verb]["security"] == [{name: []}]
        assert "security" not in found["paths"]["/healthz"]["get"]
        assert guarded.score(CAT, "a cat").status == 401
    reply = client.get("/docs")
    assert (reply.status, reply.headers["location"]) == (307, "/api")


def test_words_are_asked_for_as_scores_are(client: Client) -> None:
    most = Limits().captions
    for captions, status in ((["a cat"] * (most // 2), 200), (["a cat"] * (most // 2 + 1), 422)):
        reply = client.score(CAT, captions, path="/v1/explain")  # two readings each
        assert reply.status == status
    assert reply.code == "bad_request"
    assert "captions" in reply.json["error"]["message"]
    own = load(FakeModel(), method="raw").explain(CAT, "a cat asleep", ["a tabby"])[0]
    form = {"path": "/v1/explain", "references": "a tabby", "method": "raw"}
    answer = client.upload(CAT, ["a cat asleep"], **form).json
    assert [span["effect"] for span in answer["explanations"][0]["spans"]] == [
        span.effect for span in own.spans
    ]
    assert answer["signature"] == str(own.signature)
    broken = client.score(b"not an image", "a cat", path="/v1/explain")
    assert (broken.status, broken.code) == (422, "bad_image")
    with running(token="secret") as guarded:
        assert guarded.score(CAT, "a cat", path="/v1/explain").code == "unauthorized"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 99_999,
        b"[" * 9 + b"]" * 9,
        b'{"a":' * 9 + b"1" + b"}" * 9,
        b"[" + b"[]," * 99_999 + b"1]",
        b"{" + b'"a":1,' * 99_999 + b'"b":1}',
        b"\xff\xfe",
        ('["\u2200",' + "[" * 99).encode("utf-16"),  # ∀ holds a quote
    ],
)
def test_json_is_bounded_before_it_is_parsed(
    client: Client, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(text: object, where: object) -> None:
        raise AssertionError("it was parsed")

    with monkeypatch.context() as patch:
        patch.setattr("discode._serve.requests.parse_json", never)
        reply = client.ask("POST", "/v1/score", body, content_type="application/json")
    assert (reply.status, reply.code) == (422, "bad_request")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"NaN", JSON_TWICE])
def test_what_is_no_json_object_is_refused(client: Client, body: bytes) -> None:
    reply = client.ask("POST", "/v1/score", body, content_type="application/json")
    assert (reply.status, reply.code) == (422, "bad_request")


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text(st.sampled_from('[]{},:\\"\n\u2200ab')),
        lambda more: (
            st.lists(more, max_size=4) | st.dictionaries(st.text('"[\\', max_size=3), more)
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_the_bounds_are_those_of_what_is_parsed(value: Any, ascii_only: bool) -> None:
    """Brackets, commas and quotes inside of texts do not count."""

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value
        nests = isinstance(value, dict | list)
        return 1 + max(map(depth, inner), default=0) if nests else 0

    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    deep = depth(value)
    check_json(body, depth=deep, elements=999)
    if deep:
        with pytest.raises(HttpError, match="nested"):
            check_json(body, depth=deep - 1, elements=999)


def test_methods_are_read_off_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def noting(name: str) -> Decoder:
        seen.append(threading.current_thread().name)
        return named_decoder(name)

    monkeypatch.setattr("discode._serve.requests.named_decoder", noting)
    assert client.score(CAT, "a cat", method="raw").status == 200
    assert client.upload(CAT, ["a cat"], method="raw").status == 200
    assert len(seen) == 2
    assert all(name.startswith("parse") for name in seen)


def test_forms_that_are_broken_are_refused(client: Client) -> None:
    assert client.upload(b"", ["a cat"]).code == "bad_image"
    assert client.upload(CAT, []).code == "bad_request"
    assert client.upload(CAT, ["x"] * 10_000).code == "bad_request"
    for kind in ("multipart/form-data", "multipart/form-data; boundary=other"):
        reply = client.ask("POST", "/v1/score", b"--x\r\n\r\n", content_type=kind)
        assert (reply.status, reply.code) == (422, "bad_request")
    part = b'--x\r\ncontent-disposition: form-data; name="captions"\r\n\r\na cat\r\n'
    for charset in ("undefined", "punycode", "base64", "no-such", "idna"):
        kind = f"multipart/form-data; boundary=x; charset={charset}"
        reply = client.ask("POST", "/v1/score", part + b"--x--\r\n", content_type=kind)
        assert (reply.status, reply.code) == (422, "bad_request")
        assert "charset" in reply.json["error"]["message"]
    image = b'--x\r\ncontent-disposition: form-data; name="image"; filename="x"\r\n\r\n' + CAT
    for end, status in ((b"\r\n--x--", 200), (b"\r\n" + part, 400), (b"", 400), (b"\r\n--x", 400)):
        reply = client.ask("POST", "/v1/score", part + image + end,
                           content_type="multipart/form-data; boundary=x")  # fmt: skip
        assert reply.status == status, (end, reply)
    method = part.replace(b"captions", b"method").replace(b"a cat", b"raw")
    text = part.replace(b"captions", b"image").replace(b"a cat", b"/etc/passwd")
    for fields, place in ((method + method + image, "'method'"), (text, "image[0]:")):
        reply = client.ask("POST", "/v1/score", part + fields + b"\r\n--x--",
                           content_type="multipart/form-data; boundary=x")  # fmt: skip
        assert (reply.status, reply.code) == (422, "bad_request")
        assert place in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("charset", "caption", "read"),
    [
        ("utf-8", "кот".encode(), "кот"),
        ("utf-8", "кот".encode("cp1251"), None),
        ("ascii", "é".encode("latin-1"), None),
        ("latin-1", "é".encode("latin-1"), "é"),
    ],
)
def test_texts_of_a_form_are_of_its_charset(
    client: Client, charset: str, caption: bytes, read: str | None
) -> None:
    head = b"--x\r\ncontent-disposition: form-data; name="
    body = head + b'"captions"\r\n\r\n' + caption + b"\r\n"
    body += head + b'"image"; filename="x"\r\n\r\n' + CAT + b"\r\n--x--"
    kind = "multipart/form-data; boundary=x" + f"; charset={charset}" * (charset != "utf-8")
    reply = client.ask("POST", "/v1/score", body, content_type=kind)
    if read is None:
        assert (reply.status, reply.code) == (422, "bad_request")
    else:
        assert reply.json["scores"][0]["caption"] == read


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(client: Client, kind: str) -> None:
    reply = client.ask("POST", "/v1/score", b"image=x", content_type=kind)
    assert (reply.status, reply.code) == (415, "wrong_type")


def test_an_image_of_too_many_pixels_is_refused_unopened(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(image: object) -> None:
        raise AssertionError("it was decoded")

    path = tmp_path / "bomb.png"
    side = math.isqrt(MAX_PIXELS) + 1
    Image.new("1", (side, side)).save(path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    reply = client.upload(path.read_bytes(), ["a cat"])
    assert (reply.status, reply.code) == (422, "bad_image")
    assert "pixels" in reply.json["error"]["message"]
    # Nor is one whose pixels are deep: the bytes that decoding takes have a limit of their own.
    Image.new("I;16", (300, 300)).save(path)
    monkeypatch.setattr("discode.images.MAX_MEMORY", 300 * 300 * 5)
    reply = client.upload(path.read_bytes(), ["a cat"])
    assert (reply.status, reply.code) == (422, "bad_image")
    assert "to decode" in reply.json["error"]["message"]


def test_a_body_too_large_is_refused(client: Client) -> None:
    limit = 1 << 20
    reply = client.ask("POST", "/v1/score", b"x" * (limit + 1), content_type="application/json")
    assert (reply.status, reply.code) == (413, "too_large")
    # Without a length: in pieces, until it is too much.
    with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(17):
            raw.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        raw.sendall(b"0\r\n\r\n")
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]
    # One that says it will be a terabyte is not waited for.
    with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as raw:
        raw.sendall(HEAD + b"content-length: 1000000000000\r\n\r\n")
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]


def test_a_token_is_wanted_where_one_is_set() -> None:
    with running(token="sécret") as client:
        for given in (None, "", "sécret", "Bearer", "Bearer no", "Basic sécret", "Bearer s\xff"):
            head = {} if given is None else {"authorization": given.encode().decode("latin-1")}
            for path in ("/v1/models", "/metrics"):
                reply = client.get(path, **head)
                assert reply.status == 401
                assert reply.headers["www-authenticate"].startswith("Bearer")
            assert client.score(CAT, "a cat", headers=head).code == "unauthorized"
        head = {"authorization": "Bearer sécret".encode().decode("latin-1")}
        assert client.score(CAT, "a cat", headers=head).status == 200
        assert client.get("/v1/models", **head).status == 200
        for path in ("/", "/api", "/page/page.js", "/healthz", "/demo", "/openapi.json"):
            assert client.get(path).status == 200


def test_pages_of_other_sites_and_other_names_are_refused(client: Client) -> None:
    assert client.get("/healthz", host="evil.example").status == 421
    assert client.get("/healthz", host="[::").status == 421
    assert client.get("/healthz", origin="https://evil.example").status == 403
    assert client.get("/healthz", origin="null").status == 403
    assert client.get("/healthz", origin="http://[").status == 403
    for host in ("evil@localhost", "evil:x@localhost", "localhost/", "localhost?", "localhost#"):
        assert client.get("/healthz", host=host).status == 421
    assert client.get("/healthz", host=f"localhost:{client.port}").status == 200
    same = f"http://127.0.0.1:{client.port}"
    assert client.score(CAT, "a cat", headers={"origin": same}).status == 200
    with running(hosts=None) as open_client:
        assert open_client.get("/healthz", host="judge.example").status == 200
        assert open_client.get("/healthz", host="[::1]:80").status == 200
        assert open_client.get("/healthz", host="evil@judge.example").status == 421


def test_every_answer_carries_the_security_headers(client: Client) -> None:
    for path in ("/", "/page/page.js", "/healthz", "/nowhere", "/v1/score"):
        reply = client.get(path)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers
    assert (
        "frame-ancestors" in client.get("/", origin="http://[").headers["content-security-policy"]
    )
    assert client.get("/v1/score").status == 405
    assert client.get("/nowhere").code == "not_found"


def test_a_fault_of_our_own_is_told_with_the_headers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    with running() as client:
        monkeypatch.setattr("discode._http.guard.check_host", broken)
        reply = client.get("/healthz")
    assert (reply.status, reply.code) == (500, "failed")
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml", "/page/../service.py", "/page/%2e%2e/service.py",
        "/page/..%2fservice.py", "/page/%2e%2e%2f%2e%2e%2ferrors.py", "/page//etc/passwd",
        "/demo/../embedded.onnx", "/demo/captions.csv", "/page/", "/page/page.js%00.html",
        "/page/..\\service.py",
    ],
)  # fmt: skip
def test_no_path_leads_to_other_files(client: Client, path: str) -> None:
    assert client.get(path).status == 404


def test_the_page_is_whole_and_asks_nobody_else(client: Client) -> None:
    for path, file in page_files().items():
        reply = client.get(path)
        assert reply.status == 200
        assert reply.body == file.content
        if not path.endswith(".jpg"):
            text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text
            assert "https:" not in text
            assert "innerHTML" not in text
            assert " style=" not in text
            assert "onclick" not in text
    examples = client.get("/demo").json
    assert {example["name"] for example in examples} == {
        "astronaut", "cat", "coffee", "city", "painting", "sketch", "clipart", "chart"
    }  # fmt: skip
    for example in examples:
        assert (
            client.get(example["image"]).body
            == (demo_path() / f"{example['name']}.jpg").read_bytes()
        )


def test_models_health_metrics_and_openapi(client: Client) -> None:
    assert client.get("/healthz").json["status"] == "ok"
    about = client.get("/v1/models").json
    assert about["models"][0]["model"] == "fake"
    assert {"discode", "raw"} <= {row["name"] for row in about["methods"]}
    assert about["limits"]["captions"] == Limits().captions
    for row in about["methods"]:
        assert client.score(CAT, "a cat", method=row["name"]).status == 200
    client.score(CAT, [])
    text = client.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in ('discode_requests_total{status="200"}', 'discode_requests_total{status="422"}',
                 "discode_pairs_total", "discode_judge_seconds_bucket",
                 "discode_requests_inside 0.0"):  # fmt: skip
        assert line in text.body.decode()
    paths = client.get("/openapi.json").json["paths"]
    assert set(paths) == {"/v1/score", "/v1/explain", "/v1/models", "/healthz", "/metrics"}
    for path in ("/v1/score", "/v1/explain"):
        content = paths[path]["post"]["requestBody"]["content"]
        assert set(content) == {"application/json", "multipart/form-data"}


def test_one_who_sends_slowly_waits_alone() -> None:
    with running() as client:
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            raw.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
            assert client.score(CAT, "a cat").status == 200
        # It hung up half way: the service notices, and counts it no longer.
        wait_for(lambda: client.requests_inside() == 0)
        assert client.score(CAT, "a cat").status == 200


def test_who_hangs_up_is_not_judged() -> None:
    model = BusyModel()
    model.free.clear()
    asked = json.dumps({"image": data_url(CAT), "captions": ["of one who left"]}).encode()
    with (
        running(load(model), limits={"seconds": PATIENCE}) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(client.score, CAT, "the first")
        wait_for(lambda: model.batches)  # the judge is busy with it
        second = pool.submit(client.score, CAT, "the second")
        wait_for(lambda: client.requests_inside() == 2)
        with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as raw:
            raw.sendall(HEAD + f"content-length: {len(asked)}\r\n\r\n".encode() + asked)
            wait_for(lambda: client.requests_inside() == 3)
        wait_for(lambda: client.requests_inside() == 2)
        model.free.set()
        assert [first.result().status, second.result().status] == [200, 200]
        assert 'discode_requests_total{status="499"} 1.0' in client.get("/metrics").body.decode()
    assert [[pair.caption for pair in batch] for batch in model.batches] == [
        ["the first"], ["the second"]
    ]  # fmt: skip


def test_a_body_that_never_ends_gets_408() -> None:
    with (
        running(limits={"seconds": 0.2}) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as raw,
    ):
        raw.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        assert b" 408 " in raw.recv(4096).split(b"\r\n")[0]


def test_a_slow_judge_gives_504() -> None:
    model = BusyModel()
    model.free.clear()
    with running(load(model), limits={"seconds": 0.3}) as client:
        late = client.score(CAT, "a cat")
        assert (late.status, late.code) == (504, "timeout")
        assert client.get("/healthz").status == 200
        model.free.set()
        wait_for(lambda: client.score(CAT, "a cat").status == 200)


def test_too_many_requests_at_once_get_503() -> None:
    model = BusyModel()
    model.free.clear()
    with (
        running(load(model), limits={"seconds": PATIENCE, "requests": 2}) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = [pool.submit(client.score, CAT, f"caption {i}") for i in range(2)]
        wait_for(lambda: client.requests_inside() == 2)
        late = client.score(CAT, "a cat")
        assert (late.status, late.code) == (503, "busy")
        assert int(late.headers["retry-after"]) >= 1
        model.free.set()
        assert [one.result().status for one in waiting] == [200, 200]


def test_bytes_held_together_are_bounded() -> None:
    model = BusyModel()
    model.free.clear()
    limits = {"seconds": PATIENCE, "held": int(2 * len(CAT))}
    with running(load(model), limits=limits) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.upload, CAT, ["a cat"])
        wait_for(lambda: model.batches)  # its bytes are in memory
        assert client.upload(CAT, ["a cat"]).status == 503
        model.free.set()
        assert first.result().status == 200
        assert client.upload(CAT, ["a cat"]).status == 200
