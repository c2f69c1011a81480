"""Packed captions against the loop: python perf/packing.py --arch llava-next-8b [--against vllm]

The loop is FLEUR's: one pair at a time, ``generate`` of five tokens with scores, on the model as
transformers loads it. All is timed in one run, with the processing of images, on the same images
and captions; figures are printed as they come. Sections:

- ``exact``: packed against separate passes. Exits with 1 unless they agree.
- ``loop``: the loop, and one pair alone.
- ``table``: time per pair by captions per image, how long the GPU worked on it (the rest it waited)
  and the most memory; ``--against vllm`` adds vLLM's time on the same images, prompts and shapes,
  with one begun answer where we read two and a second decimal.
- ``waits``: where the thread that reads spends its time: waiting for processed images, launching
  the model, waiting for answers, and the rest; and the images of each batch. ``--threads`` and
  ``--prefix-tokens`` change what it depends on.
- ``passes``: captions in the pass of their image, or in passes of their own; the choice is by
  ``ONE_PASS_TOKENS`` in forward.py.
- ``prefix``: a prefix (images and instruction, vision tower and language model) against its own
  matrix products: every linear layer and convolution that it calls, on inputs of the same shape,
  and nothing else; then these by shape, and the attention of a prefix by kernel.
- ``kernels``: what the GPU runs, longest first.
- ``sizes``: ``waits`` of photographs of many sizes, a part of them of any size, at the first
  reading and at the next one.
- ``growth``: with the size of an image and with images per batch.
- ``second``: the last count without the second decimal.
- ``decode``: what decoding adds.

``--arch tiny --device cpu`` takes less than a minute.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from discode._pairs import Pair
from discode._prompts import FLEUR, PROMPTS, Prompt
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local import backend, forward
from discode.backends._local.backend import Local
from discode.backends._local.calibrate import packing_error
from discode.backends._local.gpu.fp8 import Fp8Linear, use_fp8
from discode.backends._local.gpu.fused import PLANNED_USES
from discode.backends._local.load import DTYPES, LocalOptions, OpenedModel, open_model
from discode.backends._local.prefix import Prefix, ProcessedImage
from discode.backends._local.random_weights import (
    ARCHITECTURES,
    configuration_and_processor,
    random_model,
)
from discode.backends._local.vocabulary import conversation
from discode.decoders import get_decoder
from discode.readings import Readings

CAPTION = "a man in a red shirt is riding a bike down a hill near the beach"
SECTIONS = (
    *("exact", "loop", "table", "waits", "passes", "prefix", "kernels", "sizes", "growth"),
    *("second", "decode"),
)
WIDTH, HEIGHT = 500, 375
SIZES = ((336, 336), (WIDTH, HEIGHT), (672, 672), (1344, 1008))
PHOTOGRAPHS = ((640, 480), (480, 640), (640, 427), (500, 375), (375, 500), (640, 426), (500, 333))
"""Common sizes of photographs."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)
WARM_UPS = 1 + PLANNED_USES
"""Readings before those that are timed: then attention is planned."""
VLLM_COLUMNS = ("vLLM, ms per pair", "against vLLM")
WAITS = "| captions per image | in all | images | launching | answers | rest | batches |\n"
WAITS += "| --- " * 7 + "|"
VLLM = """
import json, sys
from discode._prompts import PROMPTS
from perf.vllm import offline
model, prompt, images, counts = json.loads(sys.argv[1])
times = offline(model, counts, images=images, prompt=PROMPTS[prompt], load_format="dummy")
print(json.dumps(times))
"""


def say(line: str) -> None:
    """Print a line at once: a run that is cut short has shown what it measured."""
    print(line, flush=True)


def noise_images(
    count: int, width: int = WIDTH, height: int = HEIGHT, seed: int | None = 0
) -> list[Image.Image]:
    """Return images of noise, by default as large as photographs; others each time without seed."""
    rng = np.random.default_rng(seed)
    shape = (height, width, 3)
    return [Image.fromarray(rng.integers(0, 255, shape, np.uint8)) for _ in range(count)]


def with_captions(images: Sequence[Image.Image], count: int) -> list[Pair]:
    """Return each image with so many captions."""
    return [Pair(image, f"{CAPTION} {i}") for image in images for i in range(count)]


def wait() -> None:
    """Wait until the GPU has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(
    work: Callable[[], object], repeats: int = 2, prepare: Callable[[], object] = lambda: None
) -> float:
    """Return the shortest of several timings, after others that warm up.

    Each begins after ``prepare``, which is not timed.
    """
    times = []
    for _ in range(WARM_UPS + repeats):
        prepare()
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return min(times[WARM_UPS:])


def gpu_events(work: Callable[[], object]) -> list[tuple[float, float, str]]:
    """Return what a GPU runs: begin and end in seconds, and name; nothing without a GPU."""
    if not torch.cuda.is_available():
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        wait()
    # The host's own calls are among them, too.
    events = [e for e in profile.events() if e.device_type.name == "CUDA"]
    return sorted((1e-6 * e.time_range.start, 1e-6 * e.time_range.end, e.name) for e in events)


def gpu_seconds(work: Callable[[], object]) -> float:
    """Return how long any of the GPU's kernels and copies run, whatever is between them."""
    busy = until = 0.0
    for begin, end, _ in gpu_events(work):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy


def gigabytes() -> float:
    """Return the most memory so far: the GPU's since it was last reset, or the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def loop(loaded: OpenedModel, pairs: list[Pair]) -> None:
    """Ask one pair at a time; generate five tokens with their scores."""
    for pair in pairs:
        inputs: Any = loaded.processor.apply_chat_template(
            conversation(FLEUR.render(pair.caption, (), UNIT), pair.image),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            loaded.model.generate(
                **inputs.to(loaded.device, loaded.model.dtype),
                max_new_tokens=5,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )


class Bench:
    """One model, measured section by section; ``figures`` is what ``--json`` writes."""

    def __init__(
        self, args: argparse.Namespace, loaded: OpenedModel, theirs: dict[str, dict[int, float]]
    ) -> None:
        self.args, self.loaded, self.theirs = args, loaded, theirs
        self.images = noise_images(args.images)
        gpu = loaded.device.type == "cuda"
        self.where = torch.cuda.get_device_name() if gpu else "CPU"
        self.figures: dict[str, Any] = {"fp8": args.fp8, "device": self.where}
        self.agree = True
        if "loop" in args.sections:  # before the model's kernels are replaced
            alone = seconds(lambda: loop(loaded, with_captions(self.images[:4], 1))) / 4
            self.figures["loop"] = alone
        self.backend = Local(loaded, read="forced")
        if args.fp8:
            self.use_fp8()
        who = self.backend.identity
        self.figures |= {"model": who.model, "dtype": who.dtype}
        say(f"\n{who.model}, {who.dtype}, {self.where}, torch {torch.__version__}")

    def use_fp8(self) -> None:
        """Round the model to 8 bits; print how far its readings are from those before."""
        pairs = with_captions(self.images[:16], 6)
        exact = self.read(pairs)
        use_fp8(self.loaded.model, self.loaded.device)
        self.backend = Local(self.loaded, read="forced")
        say(compared(self.read(pairs), exact))

    def read(self, pairs: Sequence[Pair], prompt: Prompt = FLEUR) -> Readings:
        """Read pairs as a judge would."""
        return read_all(self.backend, pairs, prompt, UNIT)

    def run(self) -> None:
        """Run the sections that were asked for, in their order."""
        for name in self.args.sections:
            getattr(self, name)()
            if self.args.json:
                text = json.dumps(self.figures, indent=1) + "\n"
                self.args.json.write_text(text, encoding="utf-8")

    def exact(self) -> None:
        """Compare one pass, two passes and separate ones."""
        runner, pairs = self.backend.runner, with_captions(self.images[:2], 3)
        was = runner.packed, runner.one_pass, runner.one_pass_tokens
        runner.one_pass_tokens = 1 << 20  # a CPU would take two
        readings = {}
        for name, packed, at_once in (
            ("one pass", True, was[1]), ("two passes", True, False), ("separate", False, False)
        ):  # fmt: skip
            runner.packed, runner.one_pass = packed, at_once
            readings[name] = self.read(pairs).answer_logp
        runner.packed, runner.one_pass, runner.one_pass_tokens = was
        plain = readings.pop("separate")
        for name, logp in readings.items():
            apart, allowed = packing_error(runner, logp, plain)
            self.agree &= was[0] and apart <= allowed
            say(
                f"{name} against separate passes: log-probabilities {apart:.1e} apart (root mean "
                f"square; rounding is {allowed:.1e}), {np.abs(logp - plain).max():.1e} at most"
            )
        if not was[1]:
            say("this model's few captions do not run in the pass of their image")

    def loop(self) -> None:
        """Print the loop's time, and that of one pair alone."""
        alone = seconds(lambda: self.read(with_captions(self.images[:1], 1)), 5)
        self.figures["alone"] = alone
        say(f"loop: {1e3 * self.figures['loop']:.1f} ms per pair; packed, one pair alone: "
            f"{1e3 * alone:.1f} ms")  # fmt: skip

    def table(self) -> None:
        """Print the time per pair for each prompt and count."""
        for prompt in self.args.prompts:
            theirs = self.theirs.get(prompt, {})
            say(f"prompt {prompt}, {len(self.images)} images of {WIDTH} x {HEIGHT}:")
            names = ["captions per image", "ms per pair", "pairs/s", "GPU at work, ms", "share"]
            names += ["memory, GB", "against the loop", *VLLM_COLUMNS[: 2 * bool(theirs)]]
            say(f"| {' | '.join(names)} |")
            say("| --- " * len(names) + "|")
            rows = [self.row(prompt, count, theirs.get(count)) for count in self.args.counts]
            first = prompt == self.args.prompts[0]
            self.figures["rows" if first else f"rows {prompt}"] = rows

    def row(self, prompt: str, count: int, theirs: float | None) -> dict[str, Any]:
        """Measure and print one row of the table, each time on new images as perf/vllm.py does."""
        pairs = with_captions(self.images, count)

        def renew() -> None:
            pairs[:] = with_captions(noise_images(len(self.images), seed=None), count)

        self.read(with_captions(self.images[:8], count), PROMPTS[prompt])  # warms up
        work = partial(self.read, pairs, PROMPTS[prompt])
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        pair = seconds(work, self.args.repeats, renew) / len(pairs)
        memory, busy = gigabytes(), gpu_seconds(work) / len(pairs)
        row = {"captions": count, "packed": pair, "busy": busy, "memory": memory}
        if "loop" in self.figures:
            row["ratio"] = self.figures["loop"] / pair
        ratio = f"x{row['ratio']:.1f}" if "ratio" in row else "-"
        line = f"| {count} | {1e3 * pair:.2f} | {1 / pair:.0f} | {1e3 * busy:.2f} "
        line += f"| {100 * busy / pair:.0f} % | {memory:.1f} | {ratio} |"
        if theirs:
            row["vllm"] = theirs / 1e3
            line += f" {theirs:.2f} | x{theirs / (1e3 * pair):.2f} |"
        say(line)
        return row

    def waits(self) -> None:
        """Print what the reading thread does, by count, in milliseconds per pair."""
        say(WAITS)
        self.figures["waits"] = [
            self.wait_row(count, with_captions(noise_images(len(self.images), seed=None), count))
            for count in self.args.counts
        ]

    def wait_row(self, title: object, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Time the parts of one read: each part is a call that the thread makes or an iterator."""
        backend, runner = self.backend, self.backend.runner
        spent: dict[str, float] = dict.fromkeys(("images", "launching", "answers"), 0.0)
        sizes: list[int] = []
        start, prepared = runner.start, backend._prepared

        def timed(part: str, work: Callable[[], Any]) -> Any:
            begun = time.perf_counter()
            try:
                return work()
            finally:
                spent[part] += time.perf_counter() - begun

        def timed_start(groups: Any, *given: Any) -> Any:
            sizes.append(len(groups))
            answers = timed("launching", lambda: start(groups, *given))
            return lambda: timed("answers", answers)

        def timed_images(*given: Any) -> Any:
            images, end = prepared(*given), object()
            while (image := timed("images", lambda: next(images, end))) is not end:
                yield image

        vars(runner)["start"], vars(backend)["_prepared"] = timed_start, timed_images
        try:
            begun = time.perf_counter()
            self.read(pairs)
            whole = time.perf_counter() - begun
        finally:
            del runner.start, backend._prepared
        parts = {name: 1e3 * part / len(pairs) for name, part in spent.items()}
        total = 1e3 * whole / len(pairs)
        cells = [total, *parts.values(), total - sum(parts.values())]
        say(f"| {title} | {' | '.join(f'{cell:.2f}' for cell in cells)} | {sizes} |")
        return {"captions": title, "whole": total, **parts, "batches": sizes}

    def passes(self) -> None:
        """Print the time per pair with one pass and with two."""
        runner = self.backend.runner
        was = runner.one_pass, runner.one_pass_tokens
        say("| captions per image | one pass, ms per pair | two passes |")
        say("| --- | --- | --- |")
        for count in (1, 2, 3, 4, 6) if was[0] else ():
            pairs, times = with_captions(self.images, count), []
            for runner.one_pass, runner.one_pass_tokens in ((True, 1 << 20), (False, 0)):
                times.append(1e3 * seconds(partial(self.read, pairs), 1) / len(pairs))
            say(f"| {count} | {times[0]:.2f} | {times[1]:.2f} |")
        runner.one_pass, runner.one_pass_tokens = was

    def prefix(self) -> None:
        """Compare prefixes with their products, and print both in parts."""
        ready = self.processed()
        ready = ready[: self.backend.runner.images_that_fit(ready[0])]
        tokens = ready[0].ids.shape[1]
        calls = self.products(ready)
        whole = seconds(lambda: self.run_prefixes(ready)) / len(ready)
        bare = seconds(lambda: multiply(calls)) / len(ready)
        busy = gpu_seconds(lambda: self.run_prefixes(ready)) / len(ready)
        self.figures |= {"tokens": tokens, "prefix": whole, "products": bare}
        say(
            f"prefix of {tokens} tokens, {len(ready)} images at once: {1e3 * whole:.2f} ms, the "
            f"GPU at work for {1e3 * busy:.2f}, its matrix products {1e3 * bare:.2f} ms: "
            f"x{whole / bare:.2f}"
        )
        by_shape(calls, len(ready))
        self.attention(len(ready), tokens)

    def processed(self) -> list[ProcessedImage]:
        """Return images after the processor; print how long one takes."""
        runner = self.backend.runner
        tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
        images = self.images
        start = time.perf_counter()
        ready = [runner.process_image(image, tokenized) for image in images]
        spent = (time.perf_counter() - start) / len(ready)
        say(f"processing an image on the CPU: {1e3 * spent:.1f} ms")
        return ready

    def run_prefixes(self, ready: list[ProcessedImage]) -> None:
        """Run the prefixes of some images."""
        with torch.inference_mode():
            Prefix.run(self.backend.runner, ready)

    def products(self, ready: list[ProcessedImage]) -> list[tuple[Any, Any]]:
        """Return the layers that a prefix's products need, each with an input of the same shape."""
        calls: list[tuple[Any, tuple[int, ...]]] = []
        model = self.loaded.model
        hooks = [
            module.register_forward_pre_hook(lambda m, given: calls.append((m, given[0].shape)))
            for module in model.modules()
            if isinstance(module, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d | Fp8Linear)
        ]
        self.run_prefixes(ready)
        for hook in hooks:
            hook.remove()
        shapes = {shape for _, shape in calls}
        draw = partial(torch.randn, device=model.device, dtype=model.dtype)
        inputs = {shape: draw(shape) for shape in shapes}
        return [(module, inputs[shape]) for module, shape in calls]

    def attention(self, images: int, tokens: int) -> None:
        """Print how long each kernel takes for the attention of prefixes."""
        config = self.backend.runner.text_config
        heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        draw = partial(torch.randn, device=self.loaded.device, dtype=self.loaded.model.dtype)
        query = draw(images, tokens, heads, size).transpose(1, 2)
        key, value = (
            draw(images, tokens, config.num_key_value_heads, size).transpose(1, 2) for _ in "kv"
        )
        kinds = torch.nn.attention.SDPBackend
        attend = partial(
            torch.nn.functional.scaled_dot_product_attention, query, key, value, is_causal=True,
            enable_gqa=True,
        )  # fmt: skip
        for kind in (kinds.FLASH_ATTENTION, kinds.CUDNN_ATTENTION):
            try:
                with torch.nn.attention.sdpa_kernel(kind), torch.inference_mode():
                    spent = seconds(attend, 10) * config.num_hidden_layers / images
                say(f"attention of a prefix, {kind.name}: {1e3 * spent:.2f} ms")
            except RuntimeError as error:  # this device does not have it
                say(f"attention of a prefix, {kind.name}: {str(error).splitlines()[0][:60]}")

    def kernels(self) -> None:
        """Print what the GPU runs for the first and the last count."""
        for count in (self.args.counts[0], self.args.counts[-1]):
            pairs = with_captions(self.images, count)
            spent: dict[str, list[float]] = defaultdict(list)
            for begin, end, name in gpu_events(partial(self.read, pairs)):
                spent[name].append(1e3 * (end - begin) / len(pairs))
            total = sum(map(sum, spent.values()))
            say(f"kernels at {count} captions per image, {total:.2f} ms per pair:")
            for name, times in sorted(spent.items(), key=lambda row: -sum(row[1]))[:25]:
                say(f"  {sum(times):7.3f} ms, {len(times):5d} calls, {name[:90]}")

    def sizes(self) -> None:
        """Print what the reading thread does with photographs of many sizes."""
        say(WAITS)
        rng, images = np.random.default_rng(0), list[Image.Image]()
        for number in range(2 * self.args.images):
            width, height = PHOTOGRAPHS[rng.integers(len(PHOTOGRAPHS))]
            if rng.random() < 0.3:
                width, height = (int(side) for side in rng.integers(300, 641, 2))
            images += noise_images(1, width, height, seed=number)
        pairs, some = with_captions(images, 1), len({image.size for image in images})
        self.figures["sizes"] = [
            self.wait_row(f"1; {len(images)} images of {some} sizes, {when}", pairs)
            for when in ("first", "again")
        ]

    def growth(self) -> None:
        """Print how time and memory grow with the size of images and images per batch."""
        runner = self.backend.runner
        tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
        say("| image | tokens | ms per pair, 1 caption | 16 captions | memory, GB |")
        say("| --- | --- | --- | --- | --- |")
        rows: list[dict[str, Any]] = []
        for width, height in SIZES:
            images = noise_images(min(16, len(self.images)), width, height)
            tokens = runner.process_image(images[0], tokenized).ids.shape[1]
            times, memory = self.times(self.backend, images)
            rows.append(
                {"size": [width, height], "tokens": tokens, "times": times, "memory": memory}
            )
            one, many = times
            say(f"| {width} x {height} | {tokens} | {one:.2f} | {many:.2f} | {memory:.1f} |")
        say("| images per batch | ms per pair, 1 caption | 16 captions | memory, GB |")
        say("| --- | --- | --- | --- |")
        for most in BATCHES:
            backend = Local(self.loaded, read="forced", batch_images=most)
            times, memory = self.times(backend, self.images)
            rows.append({"images": most, "times": times, "memory": memory})
            say(f"| {most} | {times[0]:.2f} | {times[1]:.2f} | {memory:.1f} |")
        self.figures["growth"] = rows

    def times(self, backend: Local, images: Sequence[Image.Image]) -> tuple[list[float], float]:
        """Return milliseconds per pair at 1 and 16 captions, and the most memory."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        times = []
        for count in (1, 16):
            pairs = with_captions(images, count)
            work = partial(read_all, backend, pairs, FLEUR, UNIT)
            times.append(1e3 * seconds(work, 1) / len(pairs))
        return times, gigabytes()

    def second(self) -> None:
        """Print the time per pair of the last count without the second decimal."""
        runner, count = self.backend.runner, self.args.counts[-1]
        pairs = with_captions(self.images, count)
        runner.second_decimal = False
        less = seconds(lambda: self.read(pairs), 1) / len(pairs)
        runner.second_decimal = True
        say(f"without the second decimal, {count} captions: {1e3 * less:.2f} ms per pair")

    def decode(self) -> None:
        """Print what decoding takes."""
        readings = self.read(with_captions(self.images[:2], 3))
        many = readings.take(np.resize(np.arange(len(readings)), 10_000))
        decoder = get_decoder("discode")
        spent = seconds(lambda: decoder.decode(many)) / len(many)
        self.figures["decode"] = spent
        say(f"decoding: {1e6 * spent:.2f} µs per pair")


def vllm(args: argparse.Namespace, arch: str) -> dict[str, dict[int, float]]:
    """Return vLLM's milliseconds per pair by prompt and count, in processes of its own.

    Before our model is loaded: vLLM takes what memory there is.
    """
    if args.against != "vllm" or "table" not in args.sections:
        return {}
    if importlib.util.find_spec("vllm") is None:
        say("vLLM cannot be imported here: left out")
        return {}
    times = {}
    for prompt in args.prompts:
        with tempfile.TemporaryDirectory() as folder:
            if not args.model:
                for part in configuration_and_processor(arch):
                    part.save_pretrained(folder)
            asked = json.dumps([args.model or folder, prompt, args.images, args.counts])
            done = subprocess.run(
                [sys.executable, "-c", VLLM, asked], stdout=subprocess.PIPE, text=True,
                cwd=Path(__file__).resolve().parents[1],
            )  # fmt: skip
        if done.returncode:
            say(f"vLLM ended with exit code {done.returncode}: left out")
            continue
        each = [round(ms, 2) for ms in json.loads(done.stdout.splitlines()[-1])]
        times[prompt] = dict(zip(args.counts, each, strict=True))
        say(f"{arch}, vLLM, prompt {prompt}, ms per pair by captions per image: {times[prompt]}")
    return times


def by_shape(calls: Sequence[tuple[Any, Any]], images: int) -> None:
    """Print how long layers of one shape take, and how fast they multiply."""
    same: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for module, given in calls:
        same[tuple(module.weight.shape), tuple(given.shape)].append((module, given))
    say("| weights | inputs | calls | ms per image | TFLOP/s |")
    say("| --- | --- | --- | --- | --- |")
    for (weight, shape), some in same.items():
        spent = seconds(partial(multiply, some))
        module, given = some[0]
        with torch.inference_mode():
            products = module(given).numel() * module.weight[0].numel() * len(some)
        rate, each = 2e-12 * products / spent, 1e3 * spent / images
        say(f"| {weight} | {shape} | {len(some)} | {each:.2f} | {rate:.0f} |")


def multiply(calls: Sequence[tuple[Any, Any]]) -> None:
    """Run layers on their inputs."""
    with torch.inference_mode():
        for module, given in calls:
            module(given)


def compared(rounded: Readings, exact: Readings) -> str:
    """Return how far the readings in 8 bits are from those in bfloat16."""
    off = rounded.answer_logp - exact.answer_logp
    scores = [get_decoder("smoothing").decode(each).score for each in (rounded, exact)]
    moved = np.abs(scores[0] - scores[1])
    top = (rounded.answer_logp.argmax(-1) != exact.answer_logp.argmax(-1)).mean()
    return (
        f"fp8 against {len(exact)} pairs without: log-probabilities "
        f"{np.sqrt((off**2).mean()):.3f} apart (root mean square; their spread is "
        f"{exact.answer_logp.std():.2f}), smoothed scores {moved.mean():.4f} on average and "
        f"{moved.max():.4f} at most, another likeliest digit in {100 * top:.1f} %"
    )


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", choices=sorted(ARCHITECTURES), default=["tiny"], nargs="+",
        help="with random weights",
    )  # fmt: skip
    parser.add_argument("--random-weights", action="store_true", help="the default with --arch")
    parser.add_argument("--model", help="a checkpoint instead")
    parser.add_argument("--device")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument(
        "--fp8", action="store_true", help="products of 8-bit floats, as quantize=fp8"
    )
    parser.add_argument("--images", type=int, help="48 on a GPU, else 4")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 6, 16, 48])
    parser.add_argument("--prompts", choices=sorted(PROMPTS), nargs="+", default=[*PROMPTS])
    parser.add_argument("--sections", choices=SECTIONS, nargs="+", default=[*SECTIONS])
    parser.add_argument("--repeats", type=int, default=2, help="timings of each row")
    parser.add_argument("--threads", type=int, help="threads that process images")
    parser.add_argument("--prefix-tokens", type=int, help="tokens of prefixes per batch")
    parser.add_argument("--against", choices=["vllm"])
    parser.add_argument("--json", type=Path, help="write the last model's figures to a file, too")
    args = parser.parse_args()
    args.images = args.images or (48 if torch.cuda.is_available() else 4)
    if args.threads:
        backend.PREPARING_THREADS = dict.fromkeys(backend.PREPARING_THREADS, args.threads)
    if args.prefix_tokens:
        forward.PREFIX_TOKENS = dict.fromkeys(forward.PREFIX_TOKENS, args.prefix_tokens)
    agree = True
    for arch in [args.model] if args.model else args.arch:
        theirs = vllm(args, arch)
        options = LocalOptions(device=args.device, dtype=args.dtype or "auto")
        loaded = (
            open_model(args.model, options)
            if args.model
            else random_model(arch, args.device, args.dtype)
        )
        bench = Bench(args, loaded, theirs)
        bench.run()
        agree &= bench.agree
        del bench, loaded
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if not agree:
        sys.exit("packed and separate passes do not agree")


if __name__ == "__main__":
    # Else the folder of this file comes first, and its vllm.py is found instead of vLLM.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    main()
