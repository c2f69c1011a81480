"""An ASGI application on loopback, served in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="servers want discode-eval[serve] or discode-eval[annotate]")

from discode._http.server import make_server, open_socket

PATIENCE = 240.0
"""Seconds after which a test that waits gives up; a busy machine may need many of them."""


@contextmanager
def in_thread(app: Any) -> Iterator[int]:
    """Serve an application until the block ends; the port."""
    with open_socket("127.0.0.1", 0) as listening:
        server = make_server(app, grace_seconds=10)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
