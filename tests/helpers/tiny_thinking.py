"""Tiny checkpoints whose chat templates know of thoughts, and that write some before a rating.

The templates are stand-ins: they end as those of the models they are named after do, and begin as
the tiny families' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.once import SHELF
from tests.helpers.tiny_families import FAMILIES
from tests.helpers.tiny_lvlms import write
from tests.helpers.tiny_parts import Parts

MARKS = ["<think>", "</think>"]
SWITCH = "{% if enable_thinking is defined and enable_thinking is false %}"
REPLIES = {
    "qwen3_vl": "",  # Qwen3-VL-Instruct: no thoughts
    "qwen3_vl_thinking": "<think>\n",  # Qwen3-VL-Thinking: always
    "qwen3_5": SWITCH + "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}",  # Qwen3.5
    "qwen3": SWITCH + "<think>\n\n</think>\n\n{% endif %}",  # Qwen3: the model begins its thoughts
    "glm4v": "",  # GLM-4.1V-Thinking: the model begins its thoughts, and has no switch
}
"""What each model's template adds after "assistant"."""


def parts(name: str) -> Parts:
    made = FAMILIES["glm4v" if name == "glm4v" else "qwen3_vl"]()
    tok: Any = made.processor.tokenizer
    tok.add_tokens(MARKS)
    assert len(tok) <= made.config.get_text_config().vocab_size
    reply = "assistant|>\n" if name == "glm4v" else "assistant\n"
    before, after = tok.chat_template.rsplit(reply, 1)
    tok.chat_template = before + reply + REPLIES[name] + after
    return made


def make_thinking(name: str, folder: Path) -> Path:
    """Put a checkpoint into ``folder`` that thinks of one word, and then answers "0.8"."""
    opened = "<think>\n" in REPLIES[name]
    begins = "rating" if name == "qwen3_vl" else "thoughts" if opened else "opened thoughts"
    return SHELF.copy(
        f"thinking-{name}", folder, lambda target: write(parts(name), target, begins, name)
    )
