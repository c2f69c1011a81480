"""A key in the environment, no proxies, and a server to ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.chat_servers import KEY, Server, serving


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made
