"""The annotation application needs extras; its tests are skipped without them."""

from __future__ import annotations

import pytest

for module in ("fastapi", "jinja2", "httpx"):
    pytest.importorskip(module, reason="annotating is tested with discode-eval[annotate,dev]")
