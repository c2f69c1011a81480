"""The queue of tasks: who gets which one, and how answers are recorded.

Each function is one short transaction.
"""

from mceval.queue.answers import Receipt, flag, skip, submit
from mceval.queue.leases import Task, heartbeat, next_task
from mceval.queue.undo import undo

__all__ = ["Receipt", "Task", "flag", "heartbeat", "next_task", "skip", "submit", "undo"]
