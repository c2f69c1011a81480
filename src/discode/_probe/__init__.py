"""A card for any judge: what it sees, what misleads it, how it uses its scale."""

from discode._probe.card import Card, Figure, cards_table
from discode._probe.measure import ProbePlan, make_card, plan_probe
from discode._probe.questions import QUESTIONS, Question, Subject

__all__ = [
    "QUESTIONS",
    "Card",
    "Figure",
    "ProbePlan",
    "Question",
    "Subject",
    "cards_table",
    "make_card",
    "plan_probe",
]
