"""A key in the environment, and a server to ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.chat_servers import KEY, Server, serving


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server
