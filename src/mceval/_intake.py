"""Add images and gold questions to a campaign; unusable files stay listed with the reason.

Duplicates and near-duplicates would be judged twice and counted twice. Images are compared by a
difference hash: 17 x 16 grey cells, one bit for each pair of neighbours, 256 bits. Images that
differ in at most ``near`` bits are the same. In line drawings, most cells are blank and few bits
are informative, so fewer may differ: ``near`` times the share of 128 bits with ink in either image.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from sqlalchemy import select
from sqlalchemy.orm import Session

from discode._files import read_rows, reading
from discode.benchmarks._parsing import Entry
from discode.errors import ImageError, InputError
from discode.images import IMAGE_SUFFIXES, image_bytes, open_image
from mceval._shown import ShownCopies, copies_folder, decoded_copy, without_metadata
from mceval._states import log_event, prepare_images
from mceval._tables import Base, Candidate, Domain, Image
from mceval._texts import check_label, check_text, first_few
from mceval.database import Database, rules_of, transaction
from mceval.rules import Rules, normalized, random_bits, rank_of

NEAR = 6
FULL = 128
"""Informative pairs of cells; with fewer, fewer bits may differ."""
LEAST = 8
"""With fewer pairs, an image is too blank to be compared."""
FAINT = 2
"""Differences of up to this many grey levels are ignored: JPEG noise on white paper."""
_BITS = np.array([bin(value).count("1") for value in range(256)], np.uint8)


@dataclass(frozen=True)
class DomainSource:
    """A domain: its name, its quota of images, and their location.

    ``path`` is a folder that is searched recursively, a text file with one path per line, or a
    table (CSV, JSONL) with an image and, optionally, a source (a URL, a name in another dataset).
    """

    name: str
    path: Path
    quota: int

    def __post_init__(self) -> None:
        check_label(self.name, "a domain's name")
        if re.search(r"^[. ]|[/\\]|^all$", self.name, re.IGNORECASE):
            raise InputError(
                f"domain {self.name!r} is not a valid name; it must not contain slashes, begin "
                "with a point or a space, or be 'all'"
            )
        if self.quota < 1:
            raise InputError(f"domain {self.name}: the quota must be 1 or more, not {self.quota}")


def list_images(source: DomainSource) -> list[tuple[str, Path]]:
    """List the published source and the file of each image of a domain, sorted."""
    path = source.path
    if path.is_dir():
        files = [
            (f"{source.name}/{file.relative_to(path).as_posix()}", file)
            for file in path.rglob("*")
            if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
        ]
    elif not path.is_file():
        raise InputError(f"domain {source.name}: no such folder or list: {path}")
    elif path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet"):
        files = [
            (
                str(row.get("source") or row["image"]),
                path.parent / Entry(row, where).text("image"),
            )
            for where, row in read_rows(path)
        ]
    else:
        lines = map(str.strip, read_text(path).split("\n"))
        files = [(line, path.parent / line) for line in lines if line]
    if not files:
        raise InputError(f"domain {source.name}: no images in {path} ({', '.join(IMAGE_SUFFIXES)})")
    return sorted(files)


def read_text(path: Path) -> str:
    with reading(path, UnicodeDecodeError):
        return path.read_text(encoding="utf-8-sig")


def difference_hash(image: Pillow.Image) -> NDArray[np.uint8]:
    """Compute the difference hash of an image, 64 bytes.

    The first 32 bytes mark pairs whose right cell is brighter, the last 32 pairs that differ.

    >>> gradient = Pillow.linear_gradient("L").rotate(90).convert("RGB")
    >>> difference_hash(gradient).tolist() == [255] * 64
    True
    """
    grey = np.asarray(image.convert("L").resize((17, 16), Pillow.Resampling.BOX), np.int16)
    rise = grey[:, 1:] - grey[:, :-1]
    return np.concatenate([np.packbits(rise > FAINT), np.packbits(abs(rise) > FAINT)])


class SeenHashes:
    """The difference hashes of all images so far, with a search for near ones."""

    def __init__(self, near: int) -> None:
        self.near = near
        self._hashes = np.empty((64, 64), np.uint8)
        self._names: list[str] = []

    def match_or_add(self, hashed: NDArray[np.uint8], name: str) -> str:
        """Find the name of an image that looks the same; otherwise add this one and return ""."""
        if len(hashed) == 32:  # of an earlier version, without the marks of differing pairs
            hashed = np.concatenate([hashed, np.full(32, 255, np.uint8)])
        count = len(self._names)
        if count and self.near >= 0:
            seen = self._hashes[:count]
            distance = _BITS[seen[:, :32] ^ hashed[:32]].sum(axis=1, dtype=np.int64)
            # pairs that are informative in either image
            bits = _BITS[seen[:, 32:] | hashed[32:]].sum(axis=1, dtype=np.int64)
            excess = distance * FULL - self.near * np.minimum(bits, FULL)
            excess[bits < LEAST] = FULL
            nearest = int(excess.argmin())
            if excess[nearest] <= 0:
                return self._names[nearest]
        if count == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.empty_like(self._hashes)])
        self._hashes[count] = hashed
        self._names.append(name)
        return ""


def add_images(
    db: Database,
    sources: Sequence[DomainSource],
    *,
    now: float,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, dict[str, int]]:
    """Add images to a campaign, at its beginning or while people work.

    Images that look the same by the campaign's rules (``near``) are one. Images that must be
    decoded to be shown are copied now, so that no page waits for them.

    Files that the campaign knows are ignored. An existing domain gets the new quota. ``progress``
    is called with the number of files read so far.

    Returns:
        The number of images in each state, by domain.
    """
    names = [source.name for source in sources]
    if len(set(names)) != len(names) or not names:
        raise InputError(f"give at least one domain, and each only once, not {', '.join(names)!r}")
    files = [(source.name, *file) for source in sources for file in list_images(source)]
    digests = dict[str, str]()
    copies = ShownCopies(copies_folder(db))
    rows: dict[str, list[Image]] = {name: [] for name in names}
    with db.read() as session:
        rules = rules_of(session)
        hashes = SeenHashes(NEAR if rules.near is None else rules.near)
        known = _remember(session, hashes, digests)
    listed = set[tuple[str, str]]()
    for number, (name, source, path) in enumerate(files, start=1):
        progress(number)
        key = _stored(_place(path))
        if key not in known and (name, key) not in listed:  # a list may repeat a file
            listed.add((name, key))
            rows[name].append(_image_row(source, path, name, rules, hashes, digests, copies))
    _add_rows(db, sources, rows, len(files), now)
    return {name: dict(Counter(row.state for row in added)) for name, added in rows.items()}


@contextmanager
def begin_campaign(url: str, rules: Rules, **settings: Any) -> Iterator[Database]:
    """Create a campaign to fill inside the block; a failure there removes it again.

    ``settings`` are those of :meth:`~mceval.database.Database.create`.
    """
    with Database(url) as db:
        new = db.file is not None and not db.file.exists()
        copies = copies_folder(db)
        had_copies = copies is None or copies.exists()
        created = False
        try:
            db.create(rules, **settings)
            created = True
            yield db
        except BaseException:
            if created and not new:  # tables on a server, or in an existing file
                Base.metadata.drop_all(db.engine)
            db.close()
            for end in ("", "-wal", "-shm") if new else ():
                Path(f"{db.file}{end}").unlink(missing_ok=True)
            if created and copies is not None and not had_copies:
                shutil.rmtree(copies, ignore_errors=True)
            raise


@transaction
def _add_rows(
    session: Session,
    sources: Sequence[DomainSource],
    rows: Mapping[str, Sequence[Image]],
    files: int,
    now: float,
) -> None:
    for source in sources:
        domain = session.scalar(select(Domain).where(Domain.name == source.name))
        if domain is None:
            domain = Domain(name=source.name)
            session.add(domain)
        domain.quota = source.quota
        session.flush()
        for row in rows[source.name]:
            row.domain_id = domain.id
            session.add(row)
    session.flush()
    log_event(session, "images", now, detail=f"{files} files")
    prepare_images(session, now)  # a larger quota takes effect at once


def _remember(session: Session, hashes: SeenHashes, digests: dict[str, str]) -> set[str]:
    """Load the hashes and digests of a campaign's images; return the paths of all known files."""
    rows = session.execute(
        select(Image.path, Image.source, Image.digest, Image.dhash, Image.state_key)
        .where(Image.domain_id.is_not(None))
        .order_by(Image.id)
    ).all()
    for _, source, digest, dhash, state_key in rows:
        if not state_key:
            digests[digest] = source
            hashes.match_or_add(np.frombuffer(bytes.fromhex(dhash), np.uint8), source)
    return {row[0] for row in rows}


def _stored(name: str) -> str:
    """Escape the characters of a file name that a database cannot hold.

    >>> _stored("caf\\udce9.png") == r"caf\\udce9.png"
    True
    """
    return name.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def _place(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL in the name, or a loop of links
        return str(path)


def _image_row(
    source: str,
    file: Path,
    domain: str,
    rules: Rules,
    hashes: SeenHashes,
    digests: dict[str, str],
    copies: ShownCopies,
) -> Image:
    """Make the row of a file: in the pool, or excluded with a reason."""
    path = _stored(_place(file))
    row = Image(digest="", path=path, source=_stored(source), state="pool", state_key="")

    def left_out(state: str, why: str) -> Image:
        row.state, row.reason, row.state_key = state, why, f"{domain} {path}"
        return row

    if path != _place(file) or row.source != source:
        return left_out("unreadable", "its name is not valid UTF-8; rename the file")
    try:
        data = image_bytes(file)
        row.digest = hashlib.sha256(data).hexdigest()
        image = open_image(data)
    except (ImageError, ValueError) as error:
        return left_out("unreadable", _stored(" ".join(str(error).split())))
    other = digests.get(row.digest)
    if other is not None:
        return left_out("duplicate", f"the same file as {other}")
    hashed = difference_hash(image)
    row.dhash = hashed.tobytes().hex()
    other = hashes.match_or_add(hashed, source)
    if other:
        return left_out("duplicate", f"looks like {other}")
    digests[row.digest] = source
    _keep_copy(copies, row.digest, data, image)
    row.rank = rank_of(rules, row.digest)
    return row


def _keep_copy(copies: ShownCopies, digest: str, data: bytes, image: Pillow.Image) -> None:
    """Store the copy that people see, if the image must be decoded for it."""
    if without_metadata(data) is None:
        copies.keep(digest, decoded_copy(image))


@dataclass(frozen=True)
class AddedGold:
    """The number of gold questions added, and images that people may see twice."""

    questions: int
    in_domains: tuple[str, ...] = ()
    """Images that are also in a domain, where people may learn the answer."""
    repeated: tuple[str, ...] = ()
    """Images with more than one question."""

    def warnings(self) -> Iterator[str]:
        for names, words in (
            (self.in_domains, "gold images are also in a domain"),
            (self.repeated, "images have more than one gold question"),
        ):
            if names:
                yield f"{len(names)} {words}: {first_few(names)}; separate images are better"


def add_gold(db: Database, path: Path, now: float) -> AddedGold:
    """Add gold questions from a table of image, right and wrong: two captions, one clearly bad.

    Repeated questions are an error; several questions on one image are not.
    """
    questions = []
    copies = ShownCopies(copies_folder(db))
    asked: dict[tuple[str, ...], str] = {}
    for number, (where, cells) in enumerate(read_rows(path)):
        name = Entry(cells, where).text("image")
        file = path.parent / name
        right, wrong = (
            check_text(Entry(cells, where).text(column), f"{where}: {column}")
            for column in ("right", "wrong")
        )
        if normalized(right) == normalized(wrong):
            raise InputError(f"{where}: right and wrong are the same caption")
        try:
            data = image_bytes(file)
            image = open_image(data)
        except ImageError as error:
            raise InputError(f"{where}: {error}") from error
        digest = hashlib.sha256(data).hexdigest()
        _keep_copy(copies, digest, data, image)
        question = (digest, normalized(right), normalized(wrong))
        if asked.setdefault(question, where) != where:
            raise InputError(f"{where}: this question repeats {asked[question]}")
        row = {"digest": digest, "path": str(file.resolve()), "source": name}
        questions.append((row | {"state_key": f"gold {now} {number}"}, right, wrong))
    if not questions:
        raise InputError(f"{path.name} contains no gold questions")
    shared = _add_questions(db, questions, now)
    count = Counter(row["digest"] for row, _, _ in questions)
    names = {row["digest"]: row["source"] for row, _, _ in questions}
    twice = sorted(names[digest] for digest, times in count.items() if times > 1)
    return AddedGold(len(questions), tuple(sorted(names[d] for d in shared)), tuple(twice))


@transaction
def _add_questions(
    session: Session, questions: Sequence[tuple[dict[str, str], str, str]], now: float
) -> Sequence[str]:
    """Add gold questions; the digests of images that are also in a domain."""
    digests = [image["digest"] for image, _, _ in questions]
    shared = session.scalars(
        select(Image.digest)
        .where(Image.domain_id.is_not(None), Image.digest.in_(digests))
        .distinct()
    ).all()
    for image, right, wrong in questions:
        answer = random_bits(rules_of(session).seed, "gold", image["digest"], right) & 1
        row = Image(**image, state="gold", gold=answer)
        session.add(row)
        session.flush()
        pair = [
            Candidate(image_id=row.id, writer=writer, text=caption)
            for writer, caption in (("right", right), ("wrong", wrong))
        ]
        session.add_all(pair)
        session.flush()
        first, second = pair[::-1] if answer else pair
        row.first, row.second = first.id, second.id
    log_event(session, "gold", now, detail=f"{len(questions)} questions")
    return shared
