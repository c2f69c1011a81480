"""Schemas of the API for openapi.json: the request in its two forms, the answers."""

from __future__ import annotations

from typing import Any

_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_NUMBER: dict[str, Any] = {"type": ["number", "null"]}
_NUMBERS: dict[str, Any] = {"type": "array", "items": _NUMBER}
_METHOD: dict[str, Any] = {
    "type": "string",
    "description": "A row of `methods`, with options after a colon: discode:sigma2=0.05",
}


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return schema | {"description": description}


_CAPTIONS = "One or many, all of this image"
_REFERENCES = "Captions by people, for all of the captions; not every model takes them"

SCORE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["image", "captions"],
                "additionalProperties": False,
                "properties": {
                    "image": {
                        "type": "string",
                        "description": "A data URL (data:image/png;base64,...); an http(s) URL "
                        "where the server allows it",
                    },
                    "captions": _described({"oneOf": [{"type": "string"}, _TEXTS]}, _CAPTIONS),
                    "references": _described({"oneOf": [{"type": "string"}, _TEXTS]}, _REFERENCES),
                    "method": _METHOD,
                },
            }
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["image", "captions"],
                "properties": {
                    "image": {
                        "type": "string",
                        "format": "binary",
                        "description": "A file: AVIF, BMP, GIF, JPEG, PNG, TIFF or WebP",
                    },
                    "captions": _described(_TEXTS, _CAPTIONS),
                    "references": _described(_TEXTS, _REFERENCES),
                    "method": _METHOD,
                },
            }
        },
    },
}

_ROW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "caption": {"type": "string", "description": "As it was given"},
        "score": _described(_NUMBER, "null where there is none; then `error` says why"),
        "raw": _described(_NUMBER, "The answer that greedy decoding would print"),
        "distribution": _described(_NUMBERS, "Probabilities of `answers` after `stem`"),
        "before": {
            "type": "object",
            "description": "The same without the prior",
            "properties": {"score": _NUMBER, "distribution": _NUMBERS},
        },
        "stem": {"type": "string", "description": "What stands before the answer: 0. or 1."},
        "flags": _described(_TEXTS, "cut, defused, degenerate, generated, truncated"),
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
            "answers": _described(_TEXTS, "The scale's answers, lowest first"),
            "scores": {
                "type": "array",
                "items": _ROW,
                "description": "A row per caption, in the order given",
            },
            "counts": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "How many rows failed, and how many carry each flag",
            },
            "signature": {
                "type": "string",
                "description": "How the numbers were made; quote it with them",
            },
            "before_signature": {"type": "string", "description": "Likewise without the prior"},
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
            "models": {
                "type": "array",
                "items": {"type": "object"},
                "description": "The judge: its name, revision, scale, a note on what to expect of "
                "it, and typical scores where they are known",
            },
            "methods": {
                "type": "array",
                "items": {"type": "object"},
                "description": "The methods that a request may name",
            },
            "method": {"type": "string", "description": "The method where a request names none"},
            "urls": {"type": "boolean", "description": "Whether images are fetched by URL"},
            "limits": {"type": "object", "description": "What a request may hold"},
        },
    ),
    401: ERRORS[401],
}
