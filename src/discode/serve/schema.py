"""Schemas of the API for openapi.json: the request in its two forms, the answers."""

from __future__ import annotations

from typing import Any

_TEXTS = {"type": "array", "items": {"type": "string"}}
_NUMBER = {"type": ["number", "null"]}
_NUMBERS = {"type": "array", "items": _NUMBER}
_METHOD = {"type": "string", "description": "A row of `methods`, with options: discode:sigma2=0.05"}

SCORE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["image", "captions"],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string", "description": "A data URL; a URL where allowed."},
                    "captions": {"oneOf": [{"type": "string"}, _TEXTS]},
                    "references": {"oneOf": [{"type": "string"}, _TEXTS]},
                    "method": _METHOD,
                },
            }
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["image", "captions"],
                "properties": {
                    "image": {"type": "string", "format": "binary"},
                    "captions": _TEXTS,
                    "references": _TEXTS,
                    "method": _METHOD,
                },
            }
        },
    },
}

_ROW = {
    "type": "object",
    "properties": {
        "caption": {"type": "string"},
        "score": _NUMBER,
        "raw": _NUMBER,
        "distribution": _NUMBERS,
        "before": {
            "type": "object",
            "properties": {"score": _NUMBER, "distribution": _NUMBERS},
        },
        "stem": {"type": "string"},
        "flags": _TEXTS,
        "error": {"type": ["string", "null"]},
    },
}


def _response(description: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_ERROR = {
    "error": {
        "type": "object",
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    }
}
SCORED: dict[int | str, dict[str, Any]] = {
    200: _response(
        "One row per caption, in the order given",
        {
            "model": {"type": "string"},
            "scale": {"type": "string"},
            "answers": _TEXTS,
            "scores": {"type": "array", "items": _ROW},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "signature": {"type": "string"},
            "before_signature": {"type": "string"},
        },
    )
}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: _response("The form is cut off", _ERROR),
    401: _response("The token is missing or wrong", _ERROR),
    408: _response("The body took too long to arrive", _ERROR),
    413: _response("The body, or the image at a URL, is too large", _ERROR),
    415: _response("Neither JSON nor a form", _ERROR),
    422: _response("A field, the image or its URL cannot be used", _ERROR),
    503: _response("Too many requests at once; see Retry-After", _ERROR),
    504: _response("The judge took too long", _ERROR),
}
MODELS: dict[int | str, dict[str, Any]] = {
    200: _response(
        "The judge, the methods of decoding, the limits",
        {
            "version": {"type": "string"},
            "models": {"type": "array", "items": {"type": "object"}},
            "methods": {"type": "array", "items": {"type": "object"}},
            "method": {"type": "string"},
            "urls": {"type": "boolean"},
            "limits": {"type": "object"},
        },
    ),
    401: ERRORS[401],
}
