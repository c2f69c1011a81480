"""Behind a real proxy: nginx and Caddy as docs/mceval.md sets them up, on loopback."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from discode._http.guard import LOOPBACK
from mceval._tables import Answer
from mceval.database import Database
from mceval.people import invite
from tests.helpers.annotating import fields, images_in, kind, make_campaign, running
from tests.helpers.campaigns import scalar
from tests.helpers.ports import closed_port
from tests.helpers.servers import PATIENCE

NAME = "captions.example.org"
DOCS = Path(__file__).parents[3] / "docs" / "mceval.md"


def documented(language: str) -> str:
    """The configuration that the documentation gives."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    return str(found)


@contextmanager
def certificate() -> Iterator[Path]:
    """A folder with a certificate of our own; nginx's processes may read it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    with tempfile.TemporaryDirectory(prefix="discode-proxy-") as name:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-addext",
             f"subjectAltName=DNS:{NAME}", "-keyout", f"{name}/key.pem", "-out",
             f"{name}/cert.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        yield Path(name)


@contextmanager
def proxy(command: list[str], folder: Path, port: int) -> Iterator[None]:
    log = folder / "log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as server:
        try:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.05)
            else:
                pytest.fail(log.read_text())
            yield
        finally:
            server.terminate()


@contextmanager
def nginx(folder: Path, port: int, behind: int, site: str) -> Iterator[None]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    site = site.replace("127.0.0.1:8100", f"127.0.0.1:{behind}")
    site = re.sub(r"listen \S+ ssl;", f"listen 127.0.0.1:{port} ssl;", site)
    site = re.sub(r"/etc/\S+/fullchain.pem", f"{folder}/cert.pem", site)
    site = re.sub(r"/etc/\S+/privkey.pem", f"{folder}/key.pem", site)
    assert NAME in site
    temps = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;"
        f"events {{}} http {{ access_log off; {temps} {site} }}"
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with proxy(command, folder, port):
        yield


@contextmanager
def caddy(folder: Path, port: int, behind: int, site: str) -> Iterator[None]:
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("caddy is not installed")
    site = site.replace("127.0.0.1:8100", f"127.0.0.1:{behind}")
    site = site.replace(NAME, f"https://{NAME}:{port}", 1)
    site = site.replace(
        "{\n", f"{{\n\ttls {folder}/cert.pem {folder}/key.pem\n\tbind 127.0.0.1\n", 1
    )
    head = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(head + site)
    command = ["env", f"HOME={folder}", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}",
               program, "run", "--config", str(folder / "Caddyfile"), "--adapter",
               "caddyfile"]  # fmt: skip
    with proxy(command, folder, port):
        yield


REWRITTEN = f"""
server {{
    listen 443 ssl;
    server_name {NAME};
    ssl_certificate     /etc/x/fullchain.pem;
    ssl_certificate_key /etc/x/privkey.pem;
    location / {{ proxy_pass http://127.0.0.1:8100; }}
}}
"""
"""What nginx does by default: the server is told the proxy's own name for it."""


@pytest.mark.parametrize(
    ("start", "site"),
    [
        pytest.param(nginx, "nginx", id="nginx"),
        pytest.param(nginx, REWRITTEN, id="nginx that rewrites Host"),
        pytest.param(caddy, "caddyfile", id="caddy"),
    ],
)
def test_people_work_behind_a_proxy(
    sqlite: Database, tmp_path: Path, start: object, site: str
) -> None:
    if site in ("nginx", "caddyfile"):
        site = documented(site)
    assert callable(start)
    make_campaign(sqlite, images_in(tmp_path, {"a": 2}), 2)
    (ada,) = invite(sqlite, ["Ada"], "comparer", 0.0)
    options = {"hosts": (*LOOPBACK, NAME), "secure": True, "trust_proxy": True}
    with (
        closed_port() as front,
        running(sqlite, **options, origin=f"https://{NAME}:{front}") as where,
        certificate() as folder,
        start(folder, front, int(where.rsplit(":", 1)[1]), site),
        httpx.Client(
            base_url=f"https://127.0.0.1:{front}", verify=False, timeout=PATIENCE,
            headers={"host": f"{NAME}:{front}"},
        ) as browser,
    ):  # fmt: skip
        origin, sni = f"https://{NAME}:{front}", {"sni_hostname": NAME}

        def get(path: str) -> httpx.Response:
            return browser.get(path, extensions=sni)

        def post(path: str, data: dict[str, str], origin: str = origin) -> httpx.Response:
            sent = browser.post(path, data=data, headers={"origin": origin}, extensions=sni)
            if "set-cookie" in sent.headers:
                browser.headers["cookie"] = sent.headers["set-cookie"].split(";")[0]
            while sent.status_code == 303:
                assert sent.headers["location"].startswith("/"), "whatever the proxy's name is"
                sent = get(sent.headers["location"])
            return sent

        assert get(f"/join/{ada.token}").status_code == 200
        page = post("/join", {"token": ada.token})
        assert browser.headers["cookie"].startswith("__Host-discode="), "for https alone"
        page = post("/consent", fields(page) | {"agreed": "yes"})
        assert kind(page) == "compare", page.text
        image = re.search(r'src="(/image/[^"]+)"', page.text)
        assert image is not None
        assert get(image[1]).headers["content-type"] == "image/png"
        forged = post("/task", fields(page) | {"side": "left"}, "https://evil.example")
        assert forged.status_code == 403, "pages of other sites may still not ask"
        page = post("/task", fields(page) | {"side": "left"})
        assert kind(page) == "compare", page.text
    assert scalar(sqlite, select(func.count(Answer.id))) == 1
