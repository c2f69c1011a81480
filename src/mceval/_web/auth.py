"""Browser sessions, and tokens that prove that a form is from our pages.

A browser has a random key in a cookie; the database stores its hash. The token in each form and the
signature of each answer's name are derived from the key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from sqlalchemy import bindparam, delete, select
from sqlalchemy.orm import Session

from discode.errors import HttpError
from mceval._tables import Login, Person
from mceval.database import Database, transaction
from mceval.people import hash_token

SESSION_SECONDS = 30 * 86400.0
_LONGEST_KEY = 100


# Run for every request, so it is built once.
_PERSON_BY_KEY = (
    select(Person)
    .join(Login, Login.person_id == Person.id)
    .where(Login.key_hash == bindparam("key"), Login.expires > bindparam("now"))
)


@dataclass(frozen=True)
class Visitor:
    """A person and the key of their browser."""

    person: Person
    key: str

    @property
    def form_token(self) -> str:
        """The token in our forms, which other sites cannot know."""
        return _mac(self.key, "form")

    def check_form(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(errors="replace"), self.form_token.encode()):
            raise HttpError(403, "forged", "this form is not yours, or is from an earlier visit")

    def new_submission(self, lease: str) -> str:
        """Make a random, signed name for the answer to a task, which the form sends back."""
        nonce = secrets.token_urlsafe(12)
        return f"{nonce}.{_mac(self.key, 'answer', lease, nonce)}"

    def check_submission(self, lease: str, submission: str) -> None:
        """Refuse names that this visitor did not get for this task."""
        nonce, _, mac = submission.partition(".")
        expected = _mac(self.key, "answer", lease, nonce)
        if not hmac.compare_digest(mac.encode(errors="replace"), expected.encode()):
            raise HttpError(403, "forged", "this answer is not from your page")


def _mac(key: str, *parts: str) -> str:
    text = "\n".join(parts).encode(errors="replace")
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()[:40]


@transaction
def begin_session(session: Session, person: int, now: float) -> str:
    """Begin a session and return its key; delete expired sessions."""
    key, expires = secrets.token_urlsafe(32), now + SESSION_SECONDS
    session.execute(delete(Login).where(Login.expires <= now))
    session.add(Login(key_hash=hash_token(key), person_id=person, created=now, expires=expires))
    return key


def find_visitor(db: Database, key: str | None, now: float) -> Visitor | None:
    if not key or len(key) > _LONGEST_KEY:
        return None
    with db.read() as session:
        person = session.scalar(_PERSON_BY_KEY, {"key": hash_token(key), "now": now})
    return None if person is None else Visitor(person, key)


@transaction
def end_session(session: Session, key: str) -> None:
    session.execute(delete(Login).where(Login.key_hash == hash_token(key)))


def network_of(address: str) -> str:
    """Address by which guesses are counted: for IPv6 the /64, which has one holder.

    >>> network_of("2001:db8::1"), network_of("::1"), network_of("::ffff:192.0.2.1")
    ('2001:db8::/64', '::/64', '192.0.2.1')
    """
    try:
        parsed = ipaddress.ip_address(address.strip().strip("[]"))
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))


@dataclass
class GuessLimiter:
    """Limits the attempts per address to open unknown invitations.

    >>> guesses = GuessLimiter(allowed=1)
    >>> guesses.failed("1.2.3.4", 0.0)
    >>> guesses.check("1.2.3.4", 1.0)
    Traceback (most recent call last):
        ...
    discode.errors.HttpError: too many unknown invitations; try again in 59 s
    >>> guesses.check("1.2.3.4", 61.0)
    """

    allowed: int = 10
    seconds: float = 60.0
    addresses: int = 10_000
    _failed: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def check(self, address: str, now: float) -> None:
        """Refuse an address with too many recent failures."""
        recent = [then for then in self._failed.get(address, ()) if then > now - self.seconds]
        if len(recent) >= self.allowed:
            wait = max(1, round(recent[0] + self.seconds - now))
            raise HttpError(
                429,
                "slow_down",
                f"too many unknown invitations; try again in {wait} s",
                {"retry-after": str(wait)},
            )

    def failed(self, address: str, now: float) -> None:
        """Record a failure; with too many addresses, drop the oldest."""
        recent = [then for then in self._failed.pop(address, ()) if then > now - self.seconds]
        self._failed[address] = [*recent, now][-self.allowed :]
        if len(self._failed) > self.addresses:
            self._failed.popitem(last=False)
