"""Requests and answers of the API as models: they check what is sent, and make openapi.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from discode._scores import COLUMNS
from discode._serve.limits import Limits

METHOD_CHARACTERS = 400
"""The longest method that a request may name; one with every option has half as many."""


class ScoreFields(BaseModel):
    """The fields of a score request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: Sequence[str | bytes]
    captions: list[str]
    references: list[str]
    method: str | None


def score_models(limits: Limits) -> tuple[type[ScoreFields], type[ScoreFields]]:
    """Return the models of a request in JSON and of a form, with a service's limits."""
    texts = Annotated[
        list[Annotated[str, Field(max_length=limits.characters)]],
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value or [],
            json_schema_input_type=str | list[str],
        ),
    ]

    images = Annotated[
        list[str],
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value,
            json_schema_input_type=str | list[str],
        ),
    ]

    class ScoreBody(ScoreFields):
        image: images = Field(
            min_length=1,
            max_length=limits.captions,
            validation_alias=AliasChoices("image", "images"),
            description="Base64, as it is or in a data URL (data:image/png;base64,...); an http(s) "
            "URL where the server allows it. A list holds an image per caption",
        )
        captions: texts = Field(
            min_length=1,
            max_length=limits.captions,
            validation_alias=AliasChoices("captions", "caption"),
            description="One or many, all of this image; as many as images where there are several",
        )
        references: texts = Field(
            [],
            validation_alias=AliasChoices("references", "reference"),
            max_length=limits.references,
            description="Captions by people, for all of the captions; not every model takes them",
        )
        method: str | None = Field(
            None,
            max_length=METHOD_CHARACTERS,
            description="A row of `methods`, with options after a colon: discode:sigma2=0.05",
        )

    class ScoreForm(ScoreBody):
        image: list[bytes] = Field(  # type: ignore[assignment]
            min_length=1,
            max_length=limits.captions,
            description="A file: AVIF, BMP, GIF, JPEG, PNG, TIFF or WebP; one, or one per caption",
        )

    return ScoreBody, ScoreForm


def _described(name: str, *default: None) -> Any:
    return Field(*default, description=COLUMNS[name].about)


class ScoredCaption(BaseModel):
    """The row of a caption; the columns of a score file mean the same here."""

    caption: str = Field(description="As it was sent")
    raw: float | None = _described("raw")
    smoothing: float | None = _described("smoothing")
    score: float | None = _described("score")
    probabilities: list[float | None] | None = Field(
        description="The model's own probabilities of `answers` after `stem`"
    )
    distribution: list[float | None] | None = _described("distribution")
    stem: str = Field(description="The text before the answer: 0. or 1.")
    flags: list[str] = _described("flags")
    stderr: float | None = _described("stderr", None)
    other_score: float | None = _described("other_score", None)
    error: str | None = _described("error")
    sentences: int | None = _described("sentences", None)
    lowest_sentence: str | None = _described("lowest_sentence", None)
    lowest_score: float | None = _described("lowest_score", None)


class ScoreAnswer(BaseModel):
    """The answer to a score request."""

    model: str
    scale: str
    answers: list[str] = Field(description="The scale's answers, lowest first")
    scores: list[ScoredCaption] = Field(description="A row per caption, in the order sent")
    counts: dict[str, int] = Field(description="How many rows failed, and how many carry each flag")
    signature: str = Field(description="How the numbers were made; quote it with them")
    smoothing_signature: str = Field(description="How `smoothing` was made")


class ExplainedWord(BaseModel):
    """A word of a caption, and what it does to the score."""

    start: int = Field(description="Its first character in the caption, counted in code points")
    end: int = Field(description="The character after its last one")
    text: str
    kind: str = Field(description="subject, noun, person, modifier, adjective, number or verb")
    variant: str = Field(description="The caption with a neutral word in its place")
    effect: float | None = Field(description="The caption's score less that of the variant")
    expected: float = Field(description="The effect of a right word of its kind; 0 if not known")
    blame: float | None = Field(description="`expected` less `effect`")
    marked: bool = Field(description="Whether it is considered wrong")
    error: str = Field(description="Why there is no effect: `not read` after what the judge reads")


class ExplainedCaption(BaseModel):
    """The row of a caption."""

    caption: str = Field(description="As it was sent")
    score: float | None
    spans: list[ExplainedWord] = Field(description="The words that were examined, in order")
    left_out: int = Field(description="How many words were not examined; at most 40 are")
    cut: bool = Field(description="Whether the judge read only part of the caption")
    wrong_throughout: bool = Field(
        description="Whether no single word is to blame for a score in the lowest third"
    )
    error: str = Field(description="Why it could not be explained, or not all of it")


class ExplainAnswer(BaseModel):
    """The answer to a request to explain captions."""

    model: str
    scale: str
    explanations: list[ExplainedCaption] = Field(description="A row per caption, in their order")
    counts: dict[str, int] = Field(description="How many rows have an error")
    signature: str = Field(description="How the numbers were made; quote it with them")


Answer = ScoreAnswer | ExplainAnswer


class ModelsAnswer(BaseModel):
    """The judge, the methods of decoding, the limits."""

    version: str
    models: list[dict[str, Any]] = Field(
        description="The judge: its name, revision, scale, a note on what to expect of it, and "
        "typical scores where they are known"
    )
    methods: list[dict[str, str]] = Field(description="The methods that a request may name")
    method: str = Field(description="The method where a request names none")
    urls: bool = Field(description="Whether images are fetched by URL")
    limits: dict[str, int | float] = Field(description="What a request may hold")


class ErrorText(BaseModel):
    """A code for programs, and one line for people."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """The answer to a request that was refused."""

    error: ErrorText


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": meaning}
    for status, meaning in {
        400: "The form is cut off",
        401: "The token is missing or wrong",
        408: "The body took too long to arrive",
        413: "The body, or the image at a URL, is too large",
        415: "Neither JSON nor a form",
        422: "A field, the image or its URL cannot be used",
        503: "Too many requests at once; see Retry-After",
        504: "The judge took too long",
    }.items()
}
