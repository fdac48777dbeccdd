"""Benefit terms: each maps requests to ``[0, 1]``, higher is better."""

from batchpolicy.terms.ageing import Ageing
from batchpolicy.terms.fairness import Fairness
from batchpolicy.terms.priority import PriorityTerm
from batchpolicy.terms.shortness import Shortness
from batchpolicy.terms.term import Scorer, Term
from batchpolicy.terms.urgency import Urgency

__all__ = ["Ageing", "Fairness", "PriorityTerm", "Scorer", "Shortness", "Term", "Urgency"]
