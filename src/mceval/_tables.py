"""The tables of a campaign's database. One database holds one campaign.

Times are seconds since 1970. What people did is only ever added to: an answer that is taken back
or put back in the queue stays, and a row of :class:`Void` says so; for skips and flags it is a row
of :class:`PassVoid`. Only names and texts of somebody who wants to be erased are taken out.

A database of an earlier version is brought up to date when it is opened: tables and columns that
it lacks are added, so a new column is nullable, and the values that an old check allows are fixed.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 5
DISCARDED_BY = ("no_consensus", "skipped", "flagged", "taken_down", "captions")
"""Why images are discarded. By the first four, people decided; "captions" that fewer than three of
an image's captions differ."""
ROLES = {
    "reviser": ("revise", "look"),
    "comparer": ("compare",),
    "both": ("compare", "revise", "look"),
    "study": ("study",),
    "admin": (),
}
"""The kinds of task that a role is given. "study" are the new people of the user study; "look" is
the second look at a revision, where the rules want one."""


class Base(DeclarativeBase):
    """The base of all tables."""


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Campaign(Base):
    """The one row that says what this campaign is."""

    __tablename__ = "campaign"
    __table_args__ = (CheckConstraint("id = 1", name="one_campaign"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]
    name: Mapped[str] = mapped_column(Text)
    rules: Mapped[str] = mapped_column(Text)
    """:class:`~mceval.rules.Rules` as JSON."""
    checks: Mapped[str] = mapped_column(Text)
    """:class:`~mceval._checks.Checks` as JSON."""
    lease_seconds: Mapped[float]
    pay_per_hour: Mapped[float]
    instructions: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Domain(Base):
    """A visual domain and how many images it should have."""

    __tablename__ = "domain"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    quota: Mapped[int]


class Image(Base):
    """An image: where its file is, its state, and why it has it.

    States: pool, active, done, discarded, unreadable, duplicate, gold. ``first`` and ``second`` are
    the candidates that are compared, ``revised`` the one that becomes the reference; ``preference``
    (0 for the first, 1 for the second) and ``reference`` are there once the image is done.
    """

    __tablename__ = "image"
    __table_args__ = (
        _one_of("state", "pool", "active", "done", "discarded", "unreadable", "duplicate", "gold"),
        _one_of("discarded_by", *DISCARDED_BY),
        UniqueConstraint("digest", "state_key"),
        Index("image_queue", "domain_id", "state", "rank"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    domain_id: Mapped[int | None] = mapped_column(ForeignKey("domain.id"))
    digest: Mapped[str] = mapped_column(Text)
    """SHA-256 of the file; "" where it could not be read."""
    state_key: Mapped[str] = mapped_column(Text, default="")
    """"" for the one row that represents an image; its path for those left out."""
    dhash: Mapped[str] = mapped_column(Text, default="")
    path: Mapped[str] = mapped_column(Text)
    """Where the file is on this machine."""
    source: Mapped[str] = mapped_column(Text)
    """Where the image is from, as published."""
    state: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text, default="")
    """Why it is discarded or left out, in words."""
    discarded_by: Mapped[str | None] = mapped_column(Text)
    """One of :data:`DISCARDED_BY` where it is discarded."""
    rank: Mapped[str] = mapped_column(Text, default="")
    revised: Mapped[int | None]
    first: Mapped[int | None]
    second: Mapped[int | None]
    gold: Mapped[int | None]
    """The right answer of a gold question, 0 or 1."""
    preference: Mapped[int | None]
    reference: Mapped[str | None] = mapped_column(Text)


class Candidate(Base):
    """A caption; who wrote it is never shown to people."""

    __tablename__ = "candidate"
    __table_args__ = (UniqueConstraint("image_id", "writer"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    writer: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)


class Person(Base):
    """Somebody who works on the campaign; only a hash of their token is kept.

    States: active; careless, whose answers do not count; left, who withdrew or whose invitation was
    revoked, and whose answers count.
    """

    __tablename__ = "person"
    __table_args__ = (
        _one_of("role", *ROLES),
        _one_of("state", "active", "careless", "left"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(Text, default="active")
    reason: Mapped[str] = mapped_column(Text, default="")
    token_hash: Mapped[str | None] = mapped_column(Text, unique=True)
    """``None`` where the invitation was used up or revoked."""
    token_expires: Mapped[float | None]
    worker: Mapped[str | None] = mapped_column(Text, unique=True)
    """The name on a crowd platform, for somebody who came from one."""
    consented: Mapped[float | None]
    created: Mapped[float]
    shown: Mapped[float | None]
    """When they were last given a page to work on, by our clock."""


class Slot(Base):
    """A task for one person: kinds revise, look, compare, study, gold.

    An image has one revise slot and as many compare slots as the rules say, numbered; with a second
    look, revision number k has a look of the same number, and a rejected one is followed by number
    k + 1. The holder is a column, so two unique constraints guarantee what the queue promises: a
    slot exists once, and nobody has two slots of one image (so nobody compares what they revised,
    or looks at it). ``round`` counts how often the slot was put back; the answer that counts is the
    one of this round.
    """

    __tablename__ = "slot"
    __table_args__ = (
        _one_of("kind", "revise", "look", "compare", "study", "gold"),
        _one_of("state", "open", "leased", "answered", "closed"),
        UniqueConstraint("image_id", "kind", "number"),
        UniqueConstraint("image_id", "person_id"),
        Index("slot_queue", "state", "kind", "id"),
        Index(
            "slot_one_lease",
            "person_id",
            unique=True,
            sqlite_where=text("state = 'leased'"),
            postgresql_where=text("state = 'leased'"),
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    kind: Mapped[str] = mapped_column(Text)
    number: Mapped[int]
    state: Mapped[str] = mapped_column(Text, default="open")
    round: Mapped[int] = mapped_column(default=0)
    person_id: Mapped[int | None] = mapped_column(ForeignKey("person.id"))
    lease: Mapped[str | None] = mapped_column(Text, unique=True)
    """A random name for this lease of the slot; a browser sees nothing else of it."""
    leased_at: Mapped[float | None]
    expires: Mapped[float | None]
    seen: Mapped[float | None]
    """When its holder last gave a sign of life."""
    worked: Mapped[float | None]
    """Their seconds of work on it until then."""


class Answer(Base):
    """A person's answer: a choice or a revised text, never changed but that an erased text is "".

    A choice is 0 for the first caption, 1 for the second; of a look 0 rejects and 1 accepts.
    """

    __tablename__ = "answer"
    __table_args__ = (
        UniqueConstraint("slot_id", "round"),
        Index("answer_person", "person_id", "image_id"),
        CheckConstraint("(choice IS NULL) <> (text IS NULL)", name="choice_or_text"),
        CheckConstraint("choice IN (0, 1)", name="choice_known"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    slot_id: Mapped[int] = mapped_column(ForeignKey("slot.id"))
    round: Mapped[int]
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    kind: Mapped[str] = mapped_column(Text)
    submission: Mapped[str] = mapped_column(Text, unique=True)
    """The browser's name for the answer: sent twice, it counts once."""
    choice: Mapped[int | None]
    swapped: Mapped[bool] = mapped_column(default=False)
    """Whether the second caption was on the left."""
    text: Mapped[str | None] = mapped_column(Text)
    seconds: Mapped[float]
    """From the moment that the task was given."""
    created: Mapped[float]
    worked: Mapped[float | None]
    """The seconds of work among them: without the time in which nobody gave a sign of life."""


class Void(Base):
    """An answer that no longer counts.

    Reasons: "undo" (taken back), "careless", "withdrawn" (the person wanted to be erased),
    "outdated" (a look at a revision that is gone).
    """

    __tablename__ = "void"
    answer_id: Mapped[int] = mapped_column(ForeignKey("answer.id"), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Pass(Base):
    """A person skipped or flagged an image, and why; they are not given it again.

    ``task`` is the kind of the task it was about, which they get back if they take this back.
    """

    __tablename__ = "pass"
    __table_args__ = (
        _one_of("kind", "skip", "flag"),
        Index("pass_image", "image_id"),
        Index("pass_person", "person_id", "image_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    kind: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    created: Mapped[float]
    task: Mapped[str | None] = mapped_column(Text)


class PassVoid(Base):
    """A skip or flag that does not count.

    Reasons: "undo" (taken back), "careless", "withdrawn" (the person wanted to be erased), "limit"
    (the person passed on too many images), "organiser" (somebody looked at it, and the image is all
    right).
    """

    __tablename__ = "pass_void"
    __table_args__ = (Index("pass_void_pass", "pass_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    pass_id: Mapped[int] = mapped_column(ForeignKey("pass.id"))
    reason: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Ruling(Base):
    """An organiser's decision about an image, restore or take_down; the newest one counts."""

    __tablename__ = "ruling"
    __table_args__ = (
        _one_of("kind", "restore", "take_down"),
        Index("ruling_image", "image_id", "id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    kind: Mapped[str] = mapped_column(Text)
    organiser_id: Mapped[int | None] = mapped_column(ForeignKey("person.id"))
    """``None`` at the command line."""
    reason: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Finding(Base):
    """A decision about a person (careless, reinstated, left, revoked) and its evidence."""

    __tablename__ = "finding"
    __table_args__ = (Index("finding_person", "person_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    kind: Mapped[str] = mapped_column(Text)
    organiser_id: Mapped[int | None] = mapped_column(ForeignKey("person.id"))
    """``None`` for the checks, the person's own wish, and the command line."""
    reason: Mapped[str] = mapped_column(Text)
    evidence: Mapped[str] = mapped_column(Text)
    """:class:`~mceval._checks.Evidence` as JSON: the counts at that time."""
    created: Mapped[float]


class Login(Base):
    """A browser with which somebody joined; only the hash of its key is kept."""

    __tablename__ = "login"
    key_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    created: Mapped[float]
    expires: Mapped[float]


class GuideCopy(Base):
    """A guide that people were shown, word for word; a later version of us may word it anew."""

    __tablename__ = "guide_copy"
    digest: Mapped[str] = mapped_column(Text, primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Event(Base):
    """The log: everything that changed, in order."""

    __tablename__ = "event"
    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[float]
    kind: Mapped[str] = mapped_column(Text)
    person_id: Mapped[int | None]
    image_id: Mapped[int | None]
    detail: Mapped[str] = mapped_column(Text, default="")
