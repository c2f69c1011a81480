"""What the site needs of docstrings: examples as code, and Sphinx roles as links."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`(~?)([\w.]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Return a docstring with its examples fenced and its roles linked.

    >>> as_markdown("See :func:`~discode.load`.")
    'See <autoref optional identifier="discode.load"><code>load</code></autoref>.'
    >>> as_markdown(">>> 1 + 1\\n2")
    '```pycon\\n>>> 1 + 1\\n2\\n```'
    """

    def link(match: re.Match[str]) -> str:
        short, name = match.groups()
        shown = name.rpartition(".")[2] if short else name
        # Optional, since docstrings also name what is internal and has no page.
        return f'<autoref optional identifier="{name}"><code>{shown}</code></autoref>'

    return EXAMPLE.sub(r"```pycon\n\g<0>\n```", ROLE.sub(link, text))


class Docstrings(griffe.Extension):  # type: ignore[misc]  # Any: see pyproject.toml
    """Rewrites every docstring of the package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite the docstrings of a package once all of it is loaded."""
        rest: list[griffe.Object | griffe.Alias] = [pkg]
        while rest:
            thing = rest.pop()
            if isinstance(thing, griffe.Alias):
                continue
            if thing.docstring:
                thing.docstring.value = as_markdown(thing.docstring.value)
            rest.extend(thing.members.values())
