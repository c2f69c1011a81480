"""The queue of tasks: assigning them to people and recording answers.

Each function is one short transaction.
"""

from mceval.queue._answers import Choice, Look, Revision, flag, skip, submit, undo
from mceval.queue._leases import Task, heartbeat, next_task

__all__ = [
    "Choice", "Look", "Revision", "Task", "flag", "heartbeat", "next_task", "skip", "submit",
    "undo",
]  # fmt: skip
