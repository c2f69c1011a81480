"""Read the ``tokenizer.model`` of SentencePiece without its library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from discode._extras import require_transformers
from discode.errors import require


def read_model(path: Path) -> Any:
    """Parse a model, by transformers' definition of it; raises ValueError if it is none."""
    model = require_transformers("transformers.convert_slow_tokenizer").import_protobuf()
    parsed = model.ModelProto()
    try:
        parsed.ParseFromString(path.read_bytes())
    except require("google.protobuf.message", "hf").DecodeError as error:
        raise ValueError(str(error)) from None
    if not parsed.pieces:
        raise ValueError("it is not a SentencePiece model")
    return parsed
