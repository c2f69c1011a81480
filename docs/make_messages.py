"""Print every message of the package, for proofreading.

    python docs/make_messages.py > build/messages.txt

Messages are the texts of errors, of logs, and of the command line's help. Inserted values are
shown in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = {"debug", "info", "warning", "error", "exception"}


def text_of(node: ast.expr) -> str:
    """Return a text as it is written, with the expressions of inserted values in braces.

    >>> text_of(ast.parse("f'{path.name}: ' + 'not a ' f'{kind!r}'", mode="eval").body)
    '{path.name}: not a {kind!r}'
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):  # unparsed alone, it is the same in all Pythons
        shown = "" if node.conversion == -1 else f"!{chr(node.conversion)}"
        form = f":{text_of(node.format_spec)}" if node.format_spec else ""
        return f"{{{ast.unparse(node.value)}{shown}{form}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def messages_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return the messages of a module with their line numbers."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else called
        if name.endswith(("Error", "Exit")) or called in LOGS:
            texts = node.args[:2]
        else:
            texts = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        for text in map(text_of, texts):
            if " " in text.strip():
                yield node.lineno, " ".join(text.split())


def collect() -> str:
    """Return the messages of all modules, in the order of the source."""
    lines = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        messages = [text for _, text in sorted(messages_of(ast.parse(path.read_text("utf-8"))))]
        if messages:
            lines += [f"# {path.relative_to(ROOT / 'src')}", *dict.fromkeys(messages), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(collect())
