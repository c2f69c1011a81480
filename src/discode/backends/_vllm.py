"""vLLM as an engine in this process: ``vllm:NAME``, for several GPUs and large models.

Questions, answers and their parsing are those of served models, without a server between: the
model writes a few tokens greedily, with the log-probabilities of the tokens of all answers; stems
that it did not write are begun for it. One question of each image comes first, so that vLLM's
prefix cache has the image when the others come.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import RLock
from typing import Any

from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.backends._answers import (
    MAX_TOKEN_IDS,
    MAX_TOKENS,
    READ,
    READ_ABOUT,
    TOP,
    check_answers,
    follow_answer,
    ids_of_answers,
    words_of_answers,
)
from discode.backends._base import Backend, Blocks
from discode.backends._local.hub import cached_folder
from discode.backends._local.load import check_name, folder_digest, short_message
from discode.errors import (
    BackendError,
    DiscodeError,
    InputError,
    UnknownNameError,
    require,
    suggest,
)
from discode.images import ImageSource, image_digest, open_image
from discode.options import Configurable, option, with_options_documented
from discode.readings import Identity, Readings
from discode.readings._tokens import Token, tokens_of_text

LOG = logging.getLogger("discode")
FIRST_IMAGES = 16
"""Images asked about before it is known how many tokens one has."""
MOST_IMAGES = 256
"""Maximum images at a time, whose pixels are kept."""
DEFAULTS: dict[str, Any] = {"limit_mm_per_prompt": {"image": 1}, "seed": 0}
"""Options of vLLM's that have other defaults here: one image per question needs less memory."""
NEUTRAL = {
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enforce_eager"),
    *("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    *("enable_prefix_caching", "kv_cache_memory_bytes", "cpu_offload_gb", "swap_space", "seed"),
    *("distributed_executor_backend", "download_dir", "limit_mm_per_prompt", "disable_log_stats"),
    *("mm_processor_cache_gb", "block_size", "load_format", "trust_remote_code"),
}
"""Options of vLLM's that change how it computes, but its answers only by rounding."""
_SWITCH = "enable_thinking"


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class VllmOptions(Configurable):
    """The options of ``vllm:NAME``; all others are those of vLLM's engine (``LLM``)."""

    read: str = option("auto", READ_ABOUT, *READ)


@dataclass(eq=False)
class _Question:
    """One question about one image; ``rows`` are the pairs that it answers."""

    text: str
    image: ImageSource
    digest: str
    rows: list[int] = field(default_factory=list)


class Vllm(Backend):
    """A backend for a model that vLLM runs in this process, on one GPU or several.

    Args:
        model: Hub name or folder.
        options: ``read``, and any option of vLLM's engine, e.g. ``tensor_parallel_size=2``.

    The engine starts when it is first needed; answers from a store need none. Hidden states are not
    available.
    """

    batch_size = 4096

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        own = {"read": options.pop("read")} if "read" in options else {}
        self.options, self.name = VllmOptions(**own), os.fspath(model)
        self.engine_options = {name: _parsed(value) for name, value in options.items()}
        # Its log goes to standard output by default, where results are printed.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        self._vllm = require("vllm", "vllm")
        known = {each.name for each in fields(self._vllm.EngineArgs)}
        for name in self.engine_options.keys() - known:
            hint = suggest(name, [*known, "read"])
            raise UnknownNameError(f"neither vllm: nor vLLM's engine has an option {name!r}{hint}")
        revision = self.engine_options.get("revision")
        check_name(self.name, revision)
        self._folder = Path(self.name)
        self._lock = RLock()
        self._engine: Any = None
        self._refused: InputError | None = None
        self._ids: dict[Scale, list[int]] = {}
        self._prompt_tokens = 0  # of the longest prompt so far
        self.identity = self._identity(revision)

    def _identity(self, revision: str | None) -> Identity:
        """Identify the model, with every option that changes the numbers."""
        if self._folder.is_dir():
            name, revision = self._folder.resolve().name, folder_digest(self._folder)
        else:
            name, cached = self.name, cached_folder(self.name, revision)
            revision = cached.name[:12] if cached else revision or "main"
        given = self.engine_options
        parts = [revision, "vllm", "" if self.options.read == "auto" else self.options.read]
        shown = {"dtype", "quantization", "revision"} | NEUTRAL
        if others := {name: value for name, value in given.items() if name not in shown}:
            text = json.dumps(others, sort_keys=True, default=str)
            parts.append(f"engine-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
        dtype = [given.get("quantization"), given.get("dtype", "auto")]
        return Identity(
            name, "+".join(filter(None, parts)), "-".join(map(str, filter(None, dtype)))
        )

    @property
    def engine(self) -> Any:
        """vLLM's ``LLM``, started on first use. A failed start is not repeated."""
        with self._lock:
            if self._engine is None:
                if self._refused is not None:
                    raise self._refused
                try:
                    self._engine = self._vllm.LLM(self.name, **{**DEFAULTS, **self.engine_options})
                # It may fail in any way: memory, drivers, a model that it does not have.
                except Exception as error:
                    self._refused = InputError(f"vLLM cannot run {self.name}: {_why(error)}")
                    raise self._refused from error
        return self._engine

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise if the scale has too many answers; starts nothing."""
        check_answers(scale)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Read N pairs, some images at a time."""
        words = self.engine.get_tokenizer()
        control = frozenset({*map(str, words.get_added_vocab()), *words.all_special_tokens})
        images: dict[str, dict[str, _Question]] = {}
        for row, pair in enumerate(pairs):
            try:
                text = prompt.render(pair.caption, pair.references, scale, control)
                text.encode()
                digest = image_digest(pair.image)
            except (DiscodeError, UnicodeEncodeError) as error:
                yield [row], Readings.failed(scale, [str(error)])
                continue
            texts = images.setdefault(digest, {})
            texts.setdefault(text, _Question(text, pair.image, digest)).rows.append(row)
        left = [list(texts.values()) for texts in images.values()]
        while left:
            some, left = left[: self._images_at_once()], left[self._images_at_once() :]
            yield from self._read_images(some, scale)

    def _images_at_once(self) -> int:
        """How many images are asked about at a time: their prefixes must stay in the cache."""
        cache = getattr(self.engine.llm_engine.vllm_config, "cache_config", None)
        blocks, size = (getattr(cache, name, None) for name in ("num_gpu_blocks", "block_size"))
        if not (blocks and size and self._prompt_tokens):
            return FIRST_IMAGES
        return int(max(1, min(MOST_IMAGES, blocks * size // 2 // self._prompt_tokens)))

    def _read_images(self, images: Sequence[Sequence[_Question]], scale: Scale) -> Blocks:
        """Ask all questions about some images, and yield their readings."""
        with ThreadPoolExecutor(4) as threads:
            opened = [*threads.map(_try_to_open, [some[0].image for some in images])]
        shown: dict[str, Any] = {}
        for some, image in zip(images, opened, strict=True):
            if isinstance(image, DiscodeError):
                rows = [row for question in some for row in question.rows]
                yield rows, Readings.failed(scale, [str(image)] * len(rows))
            else:
                shown[some[0].digest] = image
        asked = [some for some in images if some[0].digest in shown]
        leading = [some[0] for some in asked]
        others = [question for some in asked for question in some[1:]]
        answering: list[tuple[_Question, Any]] = []
        for part in filter(None, (leading, others)):
            for question, tokens in zip(part, self._ask(part, shown, scale), strict=True):
                answering.append((question, tokens))
        readings = self._follow(answering, shown, scale)
        for (question, _), reading in zip(answering, readings, strict=True):
            yield question.rows, reading.take([0] * len(question.rows))

    def _follow(
        self,
        answering: Sequence[tuple[_Question, Sequence[Token] | str]],
        shown: Mapping[str, Any],
        scale: Scale,
    ) -> list[Readings]:
        """Read all answers; ask for continuations of those that need one, all at a time."""
        ids = self._answer_ids(scale)
        every = 0 < len(ids) < MAX_TOKEN_IDS
        readings: dict[int, Readings] = {}
        following: dict[int, Generator[tuple[str, int], Any, Readings]] = {}
        more: dict[int, Any] = {}
        for number, (_, tokens) in enumerate(answering):
            if isinstance(tokens, str):
                readings[number] = Readings.failed(scale, [tokens])
                continue
            following[number] = follow_answer(
                tokens, scale, read=self.options.read, whole=bool(ids), every=every
            )
            more[number] = None
        while more:
            begun: dict[int, tuple[str, int]] = {}
            for number, tokens in more.items():
                try:  # a generator starts with None
                    begun[number] = following[number].send(tokens)
                except StopIteration as end:
                    readings[number] = end.value
            questions = [answering[number][0] for number in begun]
            answers = self._ask(questions, shown, scale, [*begun.values()]) if begun else []
            # An answer that cannot be continued is read as far as it goes.
            more = {
                n: None if isinstance(a, str) else a for n, a in zip(begun, answers, strict=True)
            }
        return [readings[number] for number in range(len(answering))]

    def _ask(
        self,
        questions: Sequence[_Question],
        shown: Mapping[str, Any],
        scale: Scale,
        begun: Sequence[tuple[str, int]] = (),
    ) -> list[Sequence[Token] | str]:
        """Ask questions in order; the tokens of each answer, or why there is none.

        ``begun`` has the start of each answer and how many tokens may follow it.
        """
        ids = self._answer_ids(scale)
        messages, settings = [], []
        for number, question in enumerate(questions):
            image = {"type": "image_pil", "image_pil": shown[question.digest]}
            text = {"type": "text", "text": question.text}
            turn = [{"role": "user", "content": [{**image, "uuid": question.digest}, text]}]
            limit = MAX_TOKENS
            if begun:
                turn.append({"role": "assistant", "content": begun[number][0]})
                limit = begun[number][1]
            messages.append(turn)
            which = {"logprob_token_ids": ids} if ids else {"logprobs": TOP}  # never both
            settings.append(self._vllm.SamplingParams(temperature=0.0, max_tokens=limit, **which))
        fixed: dict[str, Any] = {"use_tqdm": False}
        if begun:
            fixed |= {"continue_final_message": True, "add_generation_prompt": False}
        if _SWITCH in str(getattr(self.engine.get_tokenizer(), "chat_template", "")):
            fixed["chat_template_kwargs"] = {_SWITCH: False}
        with self._lock:
            return list(self._answers(messages, settings, fixed))

    def _answers(
        self, messages: list[Any], settings: list[Any], fixed: dict[str, Any]
    ) -> Iterator[Sequence[Token] | str]:
        """Run the engine; if it refuses the questions together, one at a time."""
        try:
            outputs = self.engine.chat(messages, settings, **fixed)
        # It raises anything for one question that is too long, an image that is too small.
        except Exception as error:
            if "Dead" in type(error).__name__:
                raise BackendError(f"vLLM's engine has stopped: {short_message(error)}") from error
            if len(messages) == 1:
                yield f"vLLM refuses this pair: {short_message(error)[:200]}"
                return
            for turn, setting in zip(messages, settings, strict=True):
                yield from self._answers([turn], [setting], fixed)
            return
        for output in outputs:
            self._prompt_tokens = max(self._prompt_tokens, len(output.prompt_token_ids or ()))
            tokens = [*map(_token, output.outputs[0].token_ids, output.outputs[0].logprobs)]
            said = tokens_of_text(tokens, output.outputs[0].text)
            yield tokens if said is None else said

    def _answer_ids(self, scale: Scale) -> list[int]:
        """The ids of a scale's answers; empty if this vLLM returns the likeliest tokens alone."""
        if scale not in self._ids:
            words = self.engine.get_tokenizer()
            ids = {*words.encode(words_of_answers(scale), add_special_tokens=False)}
            texts = {int(i): str(words.convert_ids_to_tokens([i])[0]) for i in sorted(ids)}
            # Versions that count the ids return them without `logprobs`.
            supported = hasattr(self._vllm.SamplingParams, "num_logprobs")
            self._ids[scale] = ids_of_answers(scale, texts) if supported else []
        return self._ids[scale]


def _token(written: int, likely: Mapping[int, Any]) -> Token:
    """Read one position of vLLM's ``logprobs``, as its server shows it."""
    top = [{"token": each.decoded_token or "", "logprob": each.logprob} for each in likely.values()]
    return Token.parse(
        {"token": likely[written].decoded_token or "", "top_logprobs": top}
        | {"logprob": likely[written].logprob}
    )


def _why(error: Exception) -> str:
    """What an engine refused, in one line; pydantic's errors name options in lines of their own."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return short_message(error)
    rows = [(".".join(map(str, row["loc"])), row["msg"].splitlines()[0]) for row in listed()]
    return "; ".join(": ".join(filter(None, row)) for row in rows)


def _try_to_open(image: ImageSource) -> Any:
    try:
        return open_image(image)
    except DiscodeError as error:
        return error


def _parsed(value: Any) -> Any:
    """Read an option from a command line: JSON, or else text.

    >>> _parsed("4"), _parsed("fp8"), _parsed('{"image": 1}'), _parsed("True")
    (4, 'fp8', {'image': 1}, True)
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads({"True": "true", "False": "false"}.get(value, value))
    except ValueError:
        return value
