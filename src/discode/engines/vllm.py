"""vLLM on a Ray cluster, by Ray's own processor (``ray.data.llm``): no server to start.

Each pair is asked once or twice, one token each: with the answer begun ("0.") for the digits
behind it, and, on scales with two stems, with nothing begun for the stem. vLLM returns the 20
likeliest tokens; a digit that is not among them makes its row NaN, or with ``missing="spread"`` an
estimate that is flagged. P(".") behind the stem's first digit is taken as 1.

Written against the public interface of Ray 2.60 and tested with a stand-in for its processor: vLLM
itself wants a GPU that the tests do not have.
"""

from __future__ import annotations

import base64
import io
import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from discode.decoders import Decoder, get_decoder
from discode.engines.ray import connected, plain, read_files
from discode.errors import DiscodeError, ImageError, InputError, require
from discode.judge import Judge, Progress
from discode.pairs import Pair, open_image
from discode.prompts import FLEUR, Prompt, get_prompt
from discode.readings import Identity, Readings
from discode.scales import Scale, get_scale
from discode.streams.chunks import BLOCK_ROWS, Chunk, Shard
from discode.streams.folder import RunFolder
from discode.streams.judging import Totals, judge_chunk
from discode.streams.run import Source, settle

TOP = 20
"""Log-probabilities vLLM returns at most, unless it was started with more."""
_SPACES = " \t\r\n▁ĠĊ"

Processor = Callable[[Any], Any]
"""Dataset to dataset: rows with ``messages`` and ``sampling_params`` get ``logprobs``, as vLLM's
requests have them, and of each :func:`answer` is kept."""


@dataclass
class Answers:
    """A backend of what vLLM already said; a pair's image is its place in the chunk."""

    identity: Identity
    prompt: Prompt
    scale: Scale
    missing: str = "nan"
    said: dict[tuple[int, str], Any] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Return N readings."""
        return Readings.concat(scale, [self._reading(int(str(pair.image))) for pair in pairs])

    def _reading(self, place: int) -> Readings:
        said = {probe: self.said.get((place, probe)) for probe in probes(self.scale)}
        lost = next((text for text in said.values() if isinstance(text, str)), None)
        if lost is not None:
            return Readings.failed(self.scale, [lost])
        tokens = [token_row(said[probe]) for probe in said]
        if not all(tokens):
            return Readings.failed(self.scale, ["vLLM returned no log-probabilities"])
        try:
            reading = Readings.of(tokens[0], self.scale, missing=self.missing)
        except InputError as error:
            return Readings.failed(self.scale, [str(error)])
        if len(tokens) == 1 or reading.errors:
            return reading
        stems = [_begins(tokens[1], stem) for stem in self.scale.stems]
        if all(map(math.isinf, stems)):
            begun = " or ".join(stem[0] for stem in self.scale.stems)
            return Readings.failed(
                self.scale, [f"the model does not begin its answer with {begun}"]
            )
        return replace(reading, stem_logp=np.array([stems]), lead_logp=np.array([stems]))


def probes(scale: Scale) -> tuple[str, ...]:
    """Return what is put into the model's mouth, one request each."""
    return (scale.stems[0], "") if len(scale.stems) > 1 else ("",)


def token_row(entry: Any) -> dict[str, float]:
    """Return tokens with log-probabilities, of what vLLM said at one position.

    >>> token_row([{22: {"logprob": -0.1, "decoded_token": "7"}}])
    {'7': -0.1}
    """
    row: dict[str, float] = {}
    for item in (entry[0] if entry else {}).values():
        text, logp = item.get("decoded_token"), item.get("logprob")
        if text and logp is not None and np.isfinite(logp):
            row[text] = float(np.logaddexp(row.get(text, -math.inf), logp))
    return row


def _begins(tokens: Mapping[str, float], stem: str) -> float:
    """Return log P of tokens that begin a stem: "0", "0.", " 0"."""
    found = [v for text, v in tokens.items() if (s := text.strip(_SPACES)) and stem.startswith(s)]
    return float(np.logaddexp.reduce(found)) if found else -math.inf


def requests(row: Mapping[str, Any], *, prompt: Prompt, scale: Scale) -> list[dict[str, Any]]:
    """Turn a packed chunk into requests; the first carries the chunk, less its pictures."""
    chunk = pickle.loads(row["data"])
    if isinstance(chunk, DiscodeError):
        return [_request(b"", pickle.dumps(chunk), [{"role": "user", "content": "-"}])]
    errors, pairs, asked = dict(chunk.errors), list(chunk.pairs), []
    for place, pair in enumerate(chunk.pairs):
        if pair is None:
            continue
        try:
            url = _data_url(pair)
            text = prompt.render(pair.caption, pair.references, scale)
        except (ImageError, InputError) as error:
            errors[place], pairs[place] = str(error), None
            continue
        pairs[place] = replace(pair, image=str(place))
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        for probe in probes(scale):
            begun = [{"role": "assistant", "content": probe}] if probe else []
            asked.append((place, probe, [{"role": "user", "content": content}, *begun]))
    # The results of a chunk come back by the chunk, so one without a pair needs a request, too.
    asked = asked or [(-1, "", [{"role": "user", "content": "-"}])]
    head = pickle.dumps((replace(chunk, pairs=pairs, errors=errors), len(asked)))
    where = (chunk.piece.block, chunk.piece.start)
    return [
        _request(pickle.dumps((where, place, probe)), b"" if number else head, messages)
        for number, (place, probe, messages) in enumerate(asked)
    ]


def _request(key: bytes, head: bytes, messages: list[Any]) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "max_tokens": 1, "logprobs": TOP}
    return {"key": key, "head": head, "messages": messages, "sampling_params": sampling}


def _data_url(pair: Pair) -> str:
    data = io.BytesIO()
    open_image(pair.image).save(data, "PNG")  # upright RGB, as every other model sees it
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def score_vllm(
    model: str,
    source: Source,
    output: str | os.PathLike[str],
    *,
    method: str | Decoder = "discode",
    prompt: str | Prompt = FLEUR,
    scale: str | Scale = "unit",
    missing: str = "nan",
    images: str | os.PathLike[str] | None = None,
    address: str | None = None,
    workers: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    shard_size: int = BLOCK_ROWS,
    format: str = "jsonl",
    min_score: float | None = None,
    progress: Progress | None = None,
    processor: Processor | None = None,
) -> Totals:
    """Score everything in ``source`` with vLLM on a Ray cluster; shards as of ``score_stream``.

    Args:
        model: A hub name or a folder, as vLLM takes it.
        source: As of :func:`~discode.streams.score_stream`, as are the options not named here.
        output: The folder.
        method: A row of ``discode methods``; ones that want hidden states cannot be had.
        prompt: A prompt's name, a text file, or a prompt.
        scale: "unit", "ten", "five", "letters", or a range like "1-7".
        missing: What becomes of answers that are not among the 20 tokens: "nan" or "spread".
        images: The folder of the pictures.
        address: Of the cluster; None starts Ray here.
        workers: vLLM engines at once; one if None.
        engine_options: vLLM's own, e.g. ``{"max_model_len": 8192, "tensor_parallel_size": 2}``.
        shard_size: Rows an output shard.
        format: "jsonl", "parquet" or "csv".
        min_score: Also write the samples with at least this score.
        progress: Called with the number of rows just done.
        processor: Takes the place of ``ray.data.llm``'s.
    """
    if missing not in ("nan", "spread"):
        raise InputError(f"missing={missing!r} is not allowed; allowed: 'nan', 'spread'")
    settings = settle(
        source, output, images=images, shard_size=shard_size, format=format, min_score=min_score
    )
    options = dict(engine_options or {})
    identity = Identity(
        model, str(options.get("revision", "none")), str(options.get("dtype", "auto"))
    )
    answers = Answers(identity, get_prompt(prompt), get_scale(scale), missing)
    judge = Judge(answers, get_decoder(method), answers.prompt, answers.scale)
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with (
        connected(ray, address),
        closing(RunFolder(Path(output), settings, Shard())) as folder,
    ):
        folder.begin(judge.signature)
        data = read_files(ray, settings, folder, workers or 1)
        if data is not None:
            run = processor or build(model, options, workers or 1)
            ask = partial(requests, prompt=answers.prompt, scale=answers.scale)
            for chunk, said in _whole(run(data.flat_map(ask))):
                mine = replace(judge, backend=replace(answers, said=said))
                folder.add(judge_chunk(mine, chunk, min_score))
                if progress:
                    progress(len(chunk))
        totals = folder.totals()
    if not totals.rows:
        raise InputError(f"{', '.join(settings.inputs.given)} holds no pairs")
    return totals


def build(model: str, options: Mapping[str, Any], workers: int) -> Processor:
    """Return Ray's processor for vLLM."""
    llm = require("ray.data.llm", "vllm")
    config = llm.vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs=dict(options),
        concurrency=workers,
        prepare_multimodal_stage={"enabled": True},
        should_continue_on_error=True,  # a request that fails is a row that fails
    )
    made: Processor = llm.build_processor(config, postprocess=answer)
    return made


def answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of a row what scores are made of; Ray's tables have no type for the rest."""
    return {name: row[name] for name in ("key", "head")} | {
        "said": pickle.dumps(row.get("logprobs"))
    }


def _whole(data: Any) -> Iterator[tuple[Chunk, dict[tuple[int, str], Any]]]:
    """Yield chunks when all of their answers are there, in whatever order they come."""
    heads: dict[Any, tuple[Chunk, int]] = {}
    said: dict[Any, dict[tuple[int, str], Any]] = {}
    for row in data.iter_rows():
        if not row["key"]:
            plain(pickle.loads(row["head"]))
        where, place, probe = pickle.loads(row["key"])
        if row["head"]:
            heads[where] = pickle.loads(row["head"])
        failed = row.get("__inference_error__")  # Ray's name for it
        said.setdefault(where, {})[place, probe] = (
            f"vLLM: {failed}" if failed else pickle.loads(row["said"])
        )
        if where in heads and len(said[where]) == heads[where][1]:
            yield heads.pop(where)[0], said.pop(where)
