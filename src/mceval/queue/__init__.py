"""The queue of tasks: who gets which one, and how answers are recorded.

Each function is one short transaction.
"""

from mceval.queue.answers import Choice, Look, Receipt, Revision, flag, skip, submit
from mceval.queue.leases import Task, heartbeat, next_task
from mceval.queue.undo import undo

__all__ = [
    "Choice", "Look", "Receipt", "Revision", "Task", "flag", "heartbeat", "next_task", "skip",
    "submit", "undo",
]  # fmt: skip
