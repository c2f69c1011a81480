"""A stand-in for the Hugging Face hub: one dataset, served on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO, COMMIT = "people/judgments", "c" * 40


@contextmanager
def stand_in_hub(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of a dataset; its address, and the files that were downloaded."""
    fetched: list[str] = []
    api = f"/api/datasets/{REPO}"
    info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    tree = [
        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for name, data in files.items()
    ]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            name = path.removeprefix(f"/datasets/{REPO}/resolve/").partition("/")[2]
            if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                self.answer(200, json.dumps(info).encode())
            elif path.startswith(f"{api}/tree/"):
                self.answer(200, json.dumps(tree).encode())
            elif path.startswith(f"/datasets/{REPO}/resolve/") and name in files:
                if self.command == "GET":
                    fetched.append(name)
                self.answer(200, files[name])
            else:
                self.answer(404, b"{}")

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
