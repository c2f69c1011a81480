"""How the work grows: what more rows, metrics, kills and repetitions cost, as ratios.

    python perf/scale.py [--rows 200000] [PART ...]

Prints a table: what was measured, its ratio to another measurement of the same run, that other
one, and the most that the ratio should be. Everything is generated; times are CPU seconds of
processes of their own, memory is their peak.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from discode._judge import Judge
    from discode.backends import Blocks

HERE = Path(__file__).parent
Row = tuple[str, float, object, float]
"""What is compared, the ratio, what it is out of, and the most that it should be."""


class Cost(NamedTuple):
    """What a process took: CPU seconds, and the peak of its memory in MB."""

    seconds: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.megabytes:.0f} MB"


def spend(*command: object, stop: Callable[[], bool] | None = None) -> Cost:
    """Run a command to its end, or kill it on ``stop``.

    A child's peak is at least what its parent has in memory: this process imports nothing large.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if stop is not None:
        while not stop():
            time.sleep(0.01)
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == (0 if stop is None else -signal.SIGKILL), command
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def work(name: str, *arguments: object) -> Cost:
    """Run one of :data:`WORK` in a process of its own."""
    return spend(__file__, "--work", name, *arguments)


# What is measured in a process of its own.


def make_readings(path: str, rows: str, odd: str = "") -> None:
    """Write rows of log-probabilities; with ``odd``, the last is a mapping and not a list."""
    import numpy as np

    logits = np.random.default_rng(0).normal(size=(int(rows), 10)) * 3
    logp = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).tolist()
    lines = [{"id": f"r{number}", "log_probs": row} for number, row in enumerate(logp)]
    if odd:
        lines[-1]["log_probs"] = dict(zip("0123456789", logp[-1], strict=True))
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


def decode_plainly(source: str, out: str) -> None:
    """Decode as one would without the package: all in memory, an id and a score per row."""
    import numpy as np

    with Path(source).open() as file:
        rows = [json.loads(line) for line in file]
    logp = np.array([row["log_probs"] for row in rows])
    digits, raw = np.arange(10), logp.argmax(axis=1)
    alpha = np.minimum(np.exp(-((raw - 4.5) ** 2) / 0.2) / np.sqrt(0.2 * np.pi), 1)
    weights = np.exp(logp - 0.5 * (digits - raw[:, None]) ** 2 * ((1 - alpha) / 10)[:, None])
    scores = (weights @ digits / weights.sum(axis=1)).tolist()
    with Path(out).open("w") as file:
        for row, score in zip(rows, scores, strict=True):
            file.write(json.dumps({"id": row["id"], "score": score}) + "\n")


def compare_metrics(count: str) -> None:
    """Compare so many metrics of a run of the shape of Flickr8k-Expert; none does all but that."""
    import numpy as np

    from discode import bench
    from discode._pairs import Pair
    from discode._signature import Signature
    from discode.bench._agreement import AgreementProtocol
    from discode.benchmarks import Benchmark, Ratings

    rng = np.random.default_rng(0)
    quality, image = rng.beta(0.25, 2, 5664), np.sort(rng.integers(0, 1000, 5664))
    pairs = tuple(Pair(f"{image}.jpg", f"{number}") for number, image in enumerate(image))
    pair, rater = np.repeat(np.arange(5664), 3), np.tile(np.arange(3), 5664)
    people = np.clip(np.round(1 + 3 * quality[pair] + rng.normal(scale=0.4, size=16_992)), 1, 4)
    asked = Benchmark("generated", {}, pairs, Ratings(pair, people, rater), image, {})
    made, results = Signature.of(metric="generated"), {}
    for number in range(int(count)):
        value = quality + rng.normal(scale=0.3, size=5664)
        results[f"m{number}"] = bench.MetricResult(made, made, value, {}, {}, 0.0, {})
    if results:
        log = replace(bench.RunLog.begin(asked, AgreementProtocol(), {}), results=results)
        bench.compare_metrics(log, [], resamples=1000)


def score_texts(library: str) -> None:
    """Score generated captions by BLEU, ROUGE-L and CIDEr: "ours", "pycocoevalcap", or "none"."""
    import numpy as np

    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, words)) for words in rng.zipf(1.4, (5000, 11)) % 3000]
    pairs = zip(rng.integers(0, 5000, 5664), np.sort(rng.integers(0, 1000, 5664)), strict=True)
    items = [(texts[n], tuple(texts[5 * image : 5 * image + 5])) for n, image in pairs]
    if library == "ours":
        from discode.metrics._ngram import bleu, cider, rouge_l

        bleu(items), rouge_l(items), cider(items)
    elif library == "pycocoevalcap":
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge

        references = {n: list(refs) for n, (_, refs) in enumerate(items)}
        captions = {n: [text] for n, (text, _) in enumerate(items)}
        Bleu(4).compute_score(references, captions, verbose=0)
        Rouge().compute_score(references, captions)
        Cider().compute_score(references, captions)


def make_pairs(folder: str, images: str) -> None:
    """Write images, and files of five pairs of each: those of an image together, and shuffled."""
    import numpy as np
    from PIL import Image

    rng, place = np.random.default_rng(0), Path(folder)
    for number in range(int(images)):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
        coarse.resize((480, 360), Image.Resampling.BICUBIC).save(place / f"{number}.jpg")
    lines = [
        json.dumps({"image": str(place / f"{number}.jpg"), "caption": f"a {colour} wall"}) + "\n"
        for number in range(int(images))
        for colour in ("red", "blue", "green", "dark", "bright")
    ]
    (place / "together.jsonl").write_text("".join(lines))
    (place / "shuffled.jsonl").write_text("".join(random.Random(0).sample(lines, len(lines))))


def noting_judge(log: str) -> Judge:
    """Return the embedded judge; it writes down the CPU time of its process as it goes."""
    import discode
    from discode.backends._embedded import Embedded

    class Noting(Embedded):
        def read(self, *arguments: Any, **options: Any) -> Blocks:
            yield from super().read(*arguments, **options)
            with Path(log).open("a") as file:
                file.write(f"{os.getpid()} {time.process_time():.2f}\n")

    return discode.load(Noting(threads=1))


def score_with_two_workers(source: str, out: str, log: str) -> None:
    """Score with Ray; ``log`` gets lines with a worker's number and its CPU seconds so far."""
    from discode.bulk import plan_run
    from discode.bulk._ray import score_with_ray

    score_with_ray(partial(noting_judge, log), plan_run(source, out), workers=2)


WORK: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        make_readings, decode_plainly, compare_metrics, score_texts, make_pairs,
        score_with_two_workers,
    )
}  # fmt: skip

# The parts: each returns rows of the table.


def decode(folder: Path, rows: int) -> list[Row]:
    """`discode decode` against plain json and numpy; one odd row; four times the rows."""
    ours, plain = {}, {}
    sets = (("start", 1, ""), ("plain", rows, ""), ("odd", rows, "odd"), ("many", 4 * rows, ""))
    for name, count, odd in sets:
        files = (folder / f"{name}.jsonl", folder / "scores.jsonl")
        work("make_readings", files[0], count, odd)
        ours[name] = spend("-m", "discode", "decode", files[0], "-o", files[1])
        plain[name] = ours[name] if odd else work("decode_plainly", *files)
    cost, start, base = ours["plain"], ours["start"].seconds, plain["plain"]
    took = cost.seconds - start
    odd_took, plain_took = ours["odd"].seconds - start, base.seconds - plain["start"].seconds
    return [
        ("`decode` against plain json and numpy: time", took / plain_took, base, 2),
        ("the same: memory", cost.megabytes / base.megabytes, base, 1),
        ("`decode`, one odd row: time", odd_took / took, cost, 1.15),
        ("`decode`, 4 times the rows: memory", ours["many"].megabytes / cost.megabytes, cost, 1.15),
    ]


def metrics(folder: Path, rows: int) -> list[Row]:
    """`compare` with more metrics; `report` calls the same."""
    none, two, eight = (work("compare_metrics", count).seconds for count in (0, 2, 8))
    ratio = (eight - none) / (two - none)
    return [("`compare`, 8 metrics (28 pairs) against 2: time", ratio, f"{two - none:.1f} s", 12)]


def run(folder: Path, rows: int) -> list[Row]:
    """A run into a folder: more rows, a kill on the way, the same again when it is finished."""

    def stream(name: str, out: str, stop: Callable[[], bool] | None = None) -> Cost:
        files = (folder / f"{name}.parquet", folder / out)
        return spend(HERE / "stream.py", "--work", *files, stop=stop)

    make = "import sys, stream; stream.make_set(stream.Path(sys.argv[1]), int(sys.argv[2]))"
    for name, count in (("few", rows), ("many", 4 * rows)):
        command = [sys.executable, "-c", make, str(folder / f"{name}.parquet"), str(count)]
        subprocess.run(command, check=True, cwd=HERE)
    few, many = stream("few", "few"), stream("many", "many")
    done, half = folder / "killed/_done", rows // 10_000 // 2
    killed = stream("few", "killed", lambda: len(list(done.glob("part-*"))) >= half)
    resumed, again = stream("few", "killed"), stream("few", "few")
    in_all = killed.seconds + resumed.seconds
    return [
        ("a run, 4 times the rows: time per row", many.seconds / few.seconds / 4, few, 1.1),
        ("a run, 4 times the rows: memory", many.megabytes / few.megabytes, few, 1.15),
        ("a run, killed half-way and resumed: time in all", in_all / few.seconds, few, 1.5),
        ("a run that is finished, again: time", again.seconds / few.seconds, few, 0.25),
    ]


def judge(folder: Path, rows: int) -> list[Row]:
    """The embedded judge: one pair, 800 in order and shuffled, and again."""

    def score(name: str, out: str, *options: object) -> Cost:
        files = ("-i", folder / f"{name}.jsonl", "-o", folder / out)
        return spend("-m", "discode", "score", "--model", "embedded", *files, *options)

    work("make_pairs", folder, 160)
    cat = HERE.parent / "src/discode/data/demo/cat.jpg"
    nothing = spend("-m", "discode", "methods")
    one = spend("-m", "discode", "score", "--model", "embedded", cat, "a cat")
    ordered, shuffled = (score(name, f"{name}/") for name in ("together", "shuffled"))
    shards = score("shuffled", "shards/", "--shard-size", 200)
    again = score("together", "together/")
    return [
        ("`score`, one pair: memory against `methods`", one.megabytes / nothing.megabytes, nothing,
         4.2),
        ("`score`, 800 pairs, shuffled: time", shuffled.seconds / ordered.seconds, ordered, 1.15),
        ("the same in shards of 200 rows: time", shards.seconds / ordered.seconds, ordered, 1.15),
        ("`score`, 800 pairs, again: time", again.seconds / ordered.seconds, ordered, 0.25),
        ("`score`, 800 pairs, again: memory", again.megabytes / ordered.megabytes, ordered, 0.35),
    ]  # fmt: skip


def ray(folder: Path, rows: int) -> list[Row]:
    """The CPU time of the busier of two workers of Ray against the other's, 800 pairs."""
    work("make_pairs", folder, 160)
    log = folder / "log"
    work("score_with_two_workers", folder / "together.jsonl", folder / "scores", log)
    spent: dict[str, float] = {}
    for line in log.read_text().splitlines():
        worker, seconds = line.split()
        spent[worker] = float(seconds)
    least, most = min(spent.values()), max(spent.values())
    ratio = most / least if len(spent) == 2 else float("inf")
    return [("Ray, 800 pairs, the busier of two workers: time", ratio, f"{least:.1f} s", 1.5)]


def texts(folder: Path, rows: int) -> list[Row]:
    """BLEU, ROUGE-L and CIDEr of 5,664 captions against pycocoevalcap's."""
    libraries = ("none", "ours", "pycocoevalcap")
    none, ours, theirs = (work("score_texts", library).seconds for library in libraries)
    ratio, base = (ours - none) / (theirs - none), f"{theirs - none:.1f} s"
    return [("BLEU, ROUGE-L and CIDEr against pycocoevalcap: time", ratio, base, 0.5)]


PARTS = {part.__name__: part for part in (decode, metrics, run, judge, ray, texts)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--work", nargs="+", default=())
    arguments = parser.parse_args()
    if arguments.work:
        WORK[arguments.work[0]](*arguments.work[1:])
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| what | ratio | out of | at most |\n| --- | --- | --- | --- |")
    for name in arguments.parts:
        with tempfile.TemporaryDirectory() as folder:
            for what, ratio, base, most in PARTS[name](Path(folder), arguments.rows):
                mark = "" if ratio <= most else " (missed)"
                print(f"| {what} | {ratio:.2f}{mark} | {base} | {most} |", flush=True)


if __name__ == "__main__":
    main()
