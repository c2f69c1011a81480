"""The three Java programs inside pycocoevalcap: PTBTokenizer, METEOR, SPICE.

Each is started once for all captions, gets them in one go, and ends afterwards.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discode._scores import Floats
from discode.errors import BackendError, InputError, MissingExtraError, require

TokenisedPair = tuple[str, tuple[str, ...]]
"""A tokenised caption and its tokenised references: words joined by one space."""

# What PTBTokenizer takes for the end of a line; in the middle of a caption it is a space.
_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")
# PTBTokenizer looks beyond the end of a line: "vitamin A." loses its full stop before "The" and
# keeps it before "xx". With the same line after each caption, its words do not depend on the next.
_GUARD = "The"
_STANFORD = "stanford-corenlp-3.6.0"


def check_java(metric: str) -> None:
    """Raise :class:`MissingExtraError` unless Java and pycocoevalcap are installed."""
    require("pycocoevalcap", "bench")
    if shutil.which("java") is None:
        raise MissingExtraError(
            f"{metric} needs Java, which is not on the PATH; install a Java runtime "
            "(e.g. apt install default-jre-headless)"
        )


def check_spice() -> None:
    """Raise unless SPICE's jars are installed; pycocoevalcap would download them unasked."""
    check_java("spice")
    folder = _folder("spice.spice") / "lib"
    for name in (f"{_STANFORD}.jar", f"{_STANFORD}-models.jar"):
        if not (folder / name).is_file():
            raise InputError(
                f"spice needs {name}, which pycocoevalcap does not include; run once, with a "
                "network: python -m pycocoevalcap.spice.get_stanford_models (400 MB)"
            )


def tokenise(texts: Sequence[str]) -> list[str]:
    """Return each caption's words, lower case, without punctuation, joined by one space.

    The words are those of pycocoevalcap's ``PTBTokenizer``; Java starts once for all of them.
    """
    if not texts:
        return []
    check_java("the tokenizer")
    ptb = require("pycocoevalcap.tokenizer.ptbtokenizer", "bench")
    lines = [part for text in texts for part in (_BREAKS.sub(" ", text), _GUARD)]
    done = subprocess.run(
        [
            "java", "-cp", ptb.STANFORD_CORENLP_3_4_1_JAR, "edu.stanford.nlp.process.PTBTokenizer",
            "-preserveLines", "-lowerCase",
        ],
        cwd=_folder("tokenizer.ptbtokenizer"),
        input="".join(f"{text}\n" for text in lines).encode(errors="replace"),
        capture_output=True,
        check=False,
    )  # fmt: skip
    answers = done.stdout.decode(errors="replace").split("\n")[:-1]
    if done.returncode or len(answers) != len(lines):
        raise BackendError(
            f"PTBTokenizer gave {len(answers)} lines for {len(lines)}: {_last_line(done.stderr)}"
        )
    dropped = set(ptb.PUNCTUATIONS)
    return [
        " ".join(word for word in text.rstrip().split(" ") if word not in dropped)
        for text in answers[::2]
    ]


def meteor(items: Sequence[TokenisedPair]) -> Floats:
    """Return METEOR 1.5 of each item, (M,), from one Java process.

    All SCORE lines are written without waiting for their answers; the statistics that come back go
    into one EVAL line, as in pycocoevalcap.
    """
    if not items:
        return np.zeros(0)
    check_java("meteor")
    jar = require("pycocoevalcap.meteor.meteor", "bench").METEOR_JAR
    asks = (
        f"SCORE ||| {' ||| '.join(map(_one_line, refs))} ||| {_caption_line(text)}"
        for text, refs in items
    )
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            ["java", "-jar", "-Xmx2G", jar, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=_folder("meteor.meteor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as process,
    ):
        try:
            stats = _exchange(process, asks, len(items))
            for text in stats:
                [float(number) for number in text.split()]  # a complaint would spoil EVAL
            evaluate = f"EVAL ||| {' ||| '.join(stats)}"
            values = _exchange(process, [evaluate], len(items))
            return np.array([float(value) for value in values])
        except (OSError, ValueError, EOFError) as error:
            process.kill()
            complaints.seek(0)
            raise BackendError(f"METEOR failed: {_last_line(complaints.read()) or error}") from None
        finally:
            process.kill()  # it would wait for more lines; ``with`` waits until it has ended


def spice(items: Sequence[TokenisedPair]) -> Floats:
    """Return SPICE's F-score of each item, (M,); NaN where it has none."""
    if not items:
        return np.zeros(0)
    check_spice()
    module = require("pycocoevalcap.spice.spice", "bench")
    hypotheses = {number: [text] for number, (text, _) in enumerate(items)}
    references = {number: list(refs) for number, (_, refs) in enumerate(items)}
    try:
        _, scores = module.Spice().compute_score(references, hypotheses)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise BackendError(
            f"SPICE failed: {error}; it was written for Java 8, give it that one on the PATH"
        ) from None
    return np.array([float(score["All"]["f"]) for score in scores])


def _exchange(process: subprocess.Popen[bytes], lines: Iterable[str], answers: int) -> list[str]:
    """Write lines while reading answers: one after the other would fill a pipe and block."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise OSError("the Java process has no pipes")

    def write() -> None:
        try:
            for text in lines:
                stdin.write(text.encode(errors="replace") + b"\n")
            stdin.flush()
        except OSError:  # the process has ended, which reading reports
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    texts = []
    for _ in range(answers):
        answer = stdout.readline()
        if not answer:
            raise EOFError("the Java process ended early")
        texts.append(answer.decode().strip())
    writer.join()
    return texts


def _one_line(text: str) -> str:
    return _BREAKS.sub(" ", text).replace("|||", "")


def _caption_line(text: str) -> str:
    return _one_line(text).replace("  ", " ")  # as pycocoevalcap does with a caption


def _folder(module: str) -> Path:
    imported: Any = require(f"pycocoevalcap.{module}", "bench")
    return Path(imported.__file__).parent


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
