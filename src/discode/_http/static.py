"""Static files of a web application, read once and served from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ICON = Path(__file__).parent / "icon.svg"
"""The icon of both applications."""
SHARED = tuple(Path(__file__).parent / name for name in ("distribution.js", "explained.js"))
"""Scripts of the service and of reports: distribution charts, captions with marked words."""
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}


@dataclass(frozen=True)
class StaticFile:
    """A file's content, its media type, and the start of its SHA-256."""

    content: bytes
    media_type: str
    digest: str


def read_static(folder: str, paths: Iterable[Path]) -> dict[str, StaticFile]:
    """Read files by URL path, ``folder/NAME``; types that are not served are left out.

    Only files of this table are served, so no path can lead to another file.

    >>> list(read_static("/static", [ICON, Path("secret.txt")]))
    ['/static/icon.svg']
    """
    files = {}
    for path in paths:
        if path.suffix in _CONTENT_TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            files[f"{folder}/{path.name}"] = StaticFile(
                content, _CONTENT_TYPES[path.suffix], digest
            )
    return files
