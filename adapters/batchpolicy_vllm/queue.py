"""The waiting queue that offers what the plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from batchpolicy_vllm.seams import RequestQueue


class PlannedQueue(RequestQueue):
    """Holds all waiting requests; in a step, its head is the next of the plan.

    While a plan is on offer the queue is false once the plan is used up, so that the
    engine stops there; its length is always the true one. What the engine puts back
    during the step is not offered again before the next.
    """

    def __init__(self) -> None:
        self._members: dict[str, Any] = {}
        self._offer: list[Any] | None = None

    def offer(self, ids: Iterable[str]) -> None:
        """Offer these in order; ids that do not wait here are left out."""
        members = self._members
        self._offer = [members[i] for i in ids if i in members][::-1]

    def offer_all(self, but: Callable[[Any], bool] | None = None) -> None:
        """Offer everything in order of arrival: what is left when there is no plan.

        Requests of which ``but`` is true stay out.
        """
        members = [r for r in self._members.values() if but is None or not but(r)]
        self._offer = sorted(members, key=lambda r: r.arrival_time)[::-1]

    def withdraw(self) -> None:
        """The step is over."""
        self._offer = None

    def add_request(self, request: Any) -> None:
        """Let a request wait."""
        self._members[request.request_id] = request

    def prepend_request(self, request: Any) -> None:
        """Let a request wait; its place is the plan's to say."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Let several requests wait."""
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Any:
        """The next request on offer; outside a step, the one that waits longest."""
        if self._offer is None:
            return next(iter(self))
        if not self._settle():
            raise IndexError("peek from a queue with nothing on offer")
        return self._offer[-1]

    def pop_request(self) -> Any:
        """Take what ``peek_request`` shows."""
        request = self.peek_request()
        if self._offer is not None:
            self._offer.pop()
        del self._members[request.request_id]
        return request

    def remove_request(self, request: Any) -> None:
        """Take one request out; an error if it is not here."""
        del self._members[request.request_id]

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Take requests out; those that are not here are ignored, as the engine expects."""
        for request in requests:
            self._members.pop(request.request_id, None)

    def __bool__(self) -> bool:
        return bool(self._members) if self._offer is None else self._settle()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._members.values()))

    def _settle(self) -> bool:
        """Drop from the offer what has left the queue; tells whether something is on offer."""
        offer = self._offer
        while offer and offer[-1].request_id not in self._members:
            offer.pop()
        return bool(offer)
