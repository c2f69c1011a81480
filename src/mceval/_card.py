"""Write the dataset's card from the campaign's facts; fields for the publisher are marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from discode.errors import require

FILL = "TO BE FILLED"
TEMPLATE = Path(__file__).with_name("card.md")


def dataset_card(facts: Mapping[str, Any]) -> str:
    jinja2 = require("jinja2", "mceval")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    environment.filters |= {
        "json": partial(json.dumps, sort_keys=True),
        "fixed": lambda value, digits: "–" if value is None else f"{value:.{digits}f}",
        "share": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "line": lambda text: " ".join(text.split()),
    }
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    domains = facts["domains"]
    total = domains.get("all") or next(iter(domains.values()))
    return str(template.render(facts, total=total, FILL=FILL))
