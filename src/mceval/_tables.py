"""The tables of a campaign's database. One database holds one campaign.

Times are seconds since 1970. Records are only added: an answer that no longer counts stays, with a
row of :class:`Void`, and a skip or flag stays with a row of :class:`PassVoid`. Only erasing a
person removes their name and texts.

Opening a database of an earlier version adds missing tables and columns, so new columns are
nullable. Existing check constraints are not changed.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 5
DISCARDED_BY = ("no_consensus", "skipped", "flagged", "taken_down", "captions")
"""Why images are discarded. The first four are decisions of people; "captions" means that fewer
than three captions differ."""
ROLES = {
    "reviser": ("revise", "look"),
    "comparer": ("compare",),
    "both": ("compare", "revise", "look"),
    "study": ("study",),
    "admin": (),
}
"""The kinds of task for each role. "study" is for new people, in the user study; "look" is the
second look at a revision, if the rules require one."""


class Base(DeclarativeBase):
    """The base of all tables."""


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Campaign(Base):
    """The campaign's settings, a single row."""

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
    """A visual domain and its quota of images."""

    __tablename__ = "domain"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    quota: Mapped[int]


class Image(Base):
    """An image: its file, its state, and the reason for that state.

    States: pool, active, done, discarded, unreadable, duplicate, gold. ``first`` and ``second`` are
    the candidates that are compared, ``revised`` the one that becomes the reference; ``preference``
    (0 for the first, 1 for the second) and ``reference`` are set once the image is done.
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
    """SHA-256 of the file; "" if it could not be read."""
    state_key: Mapped[str] = mapped_column(Text, default="")
    """"" for the one row that represents an image; unique for duplicates and gold questions."""
    dhash: Mapped[str] = mapped_column(Text, default="")
    path: Mapped[str] = mapped_column(Text)
    """Where the file is on this machine."""
    source: Mapped[str] = mapped_column(Text)
    """The origin of the image, as published."""
    state: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text, default="")
    """Why it is discarded or excluded, in words."""
    discarded_by: Mapped[str | None] = mapped_column(Text)
    """One of :data:`DISCARDED_BY` if it is discarded."""
    rank: Mapped[str] = mapped_column(Text, default="")
    revised: Mapped[int | None]
    first: Mapped[int | None]
    second: Mapped[int | None]
    gold: Mapped[int | None]
    """The right answer of a gold question, 0 or 1."""
    preference: Mapped[int | None]
    reference: Mapped[str | None] = mapped_column(Text)


class Candidate(Base):
    """A caption; its writer is never shown to people."""

    __tablename__ = "candidate"
    __table_args__ = (UniqueConstraint("image_id", "writer"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey("image.id"))
    writer: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)


class Person(Base):
    """A participant or organiser; only a hash of their token is stored.

    States: active; careless (answers do not count); left (withdrew or was revoked; answers count).
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
    """``None`` if the invitation was used up or revoked."""
    token_expires: Mapped[float | None]
    worker: Mapped[str | None] = mapped_column(Text, unique=True)
    """The id on a crowd platform, for people who came from one."""
    consented: Mapped[float | None]
    created: Mapped[float]
    shown: Mapped[float | None]
    """When they were last shown a task."""


class Slot(Base):
    """A task for one person: kinds revise, look, compare, study, gold.

    An image has one revise slot and a numbered compare slot for each person required; with a second
    look, revision number k has a look of the same number, and a rejected one is followed by number
    k + 1. The holder is a column, so two unique constraints enforce the queue's promises: a slot
    exists once, and a person has at most one slot of an image (so they cannot compare or look at
    their own revision). ``round`` counts how often the slot was returned; only the answer of the
    current round counts.
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
    """A random name for this lease; browsers see no other identifier of the slot."""
    leased_at: Mapped[float | None]
    expires: Mapped[float | None]
    seen: Mapped[float | None]
    """When its holder was last active on the page."""
    worked: Mapped[float | None]
    """The holder's seconds of work until then."""


class Answer(Base):
    """A person's answer: a choice or a revised text, which becomes "" if the person is erased.

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
    """The browser's name for the answer, so that one sent twice counts once."""
    choice: Mapped[int | None]
    swapped: Mapped[bool] = mapped_column(default=False)
    """Whether the second caption was on the left."""
    text: Mapped[str | None] = mapped_column(Text)
    seconds: Mapped[float]
    """Seconds since the task was shown."""
    created: Mapped[float]
    worked: Mapped[float | None]
    """The seconds of work among them, without idle time."""


class Void(Base):
    """An answer that no longer counts.

    Reasons: "undo" (taken back), "careless", "withdrawn" (the person was erased), "outdated" (a
    look at a revision that is gone).
    """

    __tablename__ = "void"
    answer_id: Mapped[int] = mapped_column(ForeignKey("answer.id"), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Pass(Base):
    """A skip or flag of an image, with its reason; the person does not get the image again.

    ``task`` is the kind of the task, which is restored if the skip or flag is taken back.
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

    Reasons: "undo" (taken back), "careless", "withdrawn" (the person was erased), "limit" (the
    person skipped or flagged too many images), "organiser" (set aside by an organiser).
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
    """``None`` for automatic checks, withdrawals, and the command line."""
    reason: Mapped[str] = mapped_column(Text)
    evidence: Mapped[str] = mapped_column(Text)
    """:class:`~mceval._checks.Evidence` as JSON: the counts at that time."""
    created: Mapped[float]


class Login(Base):
    """A browser with which a person joined; only the hash of its key is stored."""

    __tablename__ = "login"
    key_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    created: Mapped[float]
    expires: Mapped[float]


class GuideCopy(Base):
    """A guide that people were shown, word for word; later versions may change the wording."""

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
