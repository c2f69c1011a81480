"""Schedule requests to servers: one caption per image first, then its other captions.

So a server has computed an image before it receives the other captions. Each image is assigned to
one server by its digest. A server with nothing left takes work from the others, and the others
take over from one that is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from discode.backends._served.estimate import EncodedImage
from discode.backends._served.server import ModelServer

WORTH_SHARING = 16
"""Remaining captions of an image for which it pays that a second server computes the image."""


@dataclass(eq=False)
class Request:
    """One question about one image; ``rows`` are the pairs that it answers."""

    text: str
    image: EncodedImage
    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Group:
    """Requests about one image to one server; the others wait while the first is ``leading``."""

    waiting: deque[Request]
    leading: bool = False


class RequestQueue:
    """Hands each request of a batch to one server; those of a lost server are reassigned.

    A server has at most ``leading`` images with captions left: more may not fit into its cache.
    Belongs to one event loop.
    """

    def __init__(
        self, requests: Sequence[Request], servers: Iterable[ModelServer], leading: int
    ) -> None:
        self._left, self._leading = len(requests), leading
        self._new: dict[ModelServer, deque[_Group]] = {server: deque() for server in servers}
        self._open: dict[ModelServer, list[_Group]] = {server: [] for server in self._new}
        self._group_of: dict[Request, _Group] = {}
        self._changed = asyncio.Event()
        groups: dict[EncodedImage, deque[Request]] = {}
        for request in requests:
            groups.setdefault(request.image, deque()).append(request)
        for waiting in groups.values():
            self._assign(_Group(waiting))

    def _assign(self, group: _Group) -> None:
        """Assign an image by rendezvous hashing: other servers do not change the choice."""
        digest = group.waiting[0].image.digest

        def weight(server: ModelServer) -> bytes:
            return hashlib.sha256(f"{digest} {server.client.url}".encode()).digest()

        self._new[max(self._new, key=weight)].append(group)

    def others(self, server: ModelServer) -> bool:
        return any(other is not server for other in self._new)

    async def next(self, server: ModelServer) -> Request | None:
        """Wait for the next request to a server; None if there are no more."""
        while self._left and server in self._new:
            if request := self._take(server):
                return request
            await self._changed.wait()
        return None

    def _take(self, server: ModelServer) -> Request | None:
        groups = self._open[server]
        group = next((group for group in groups if not group.leading), None)
        if group is None:
            if len(groups) >= self._leading or (group := self._new_group(server)) is None:
                return None
            group.leading = True
            groups.append(group)
        request = group.waiting.popleft()
        self._group_of[request] = group
        if not group.waiting:
            groups.remove(group)
            self._wake()  # another image may begin
        return request

    def _new_group(self, server: ModelServer) -> _Group | None:
        """Take the server's next image, or some of the work left to others."""
        if self._new[server]:
            return self._new[server].popleft()
        if longest := max(self._new.values(), key=len):
            return longest.pop()
        others = [group for groups in self._open.values() for group in groups]
        group = max(others, key=lambda group: len(group.waiting), default=None)
        if group is None or group in self._open[server] or len(group.waiting) < WORTH_SHARING:
            return None
        half = [group.waiting.pop() for _ in range(len(group.waiting) // 2)]
        return _Group(deque(reversed(half)))

    def done(self, request: Request) -> None:
        self._left -= 1
        request.image.release()
        group = self._group_of.pop(request)
        if (group.leading and group.waiting) or not self._left:
            self._wake()
        group.leading = False

    def lose(self, server: ModelServer, request: Request) -> bool:
        """Reassign a lost server's remaining work and its unanswered request to the others.

        Returns whether the loss is new.
        """
        known = server not in self._new
        left = [*self._new.pop(server, ()), *self._open.pop(server, ())]
        group = self._group_of.pop(request)
        group.waiting.appendleft(request)
        if len(group.waiting) == 1:  # all of them were sent
            left.append(group)
        for group in left:
            group.leading = False
            self._assign(group)
        self._wake()
        return not known

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
