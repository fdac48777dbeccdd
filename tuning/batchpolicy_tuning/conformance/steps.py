"""What two engines did, step by step, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from batchpolicy.engine import StepRecord

Seen = tuple[object, ...]


class Steps(list[StepRecord]):
    """Keeps each step that it is called with."""

    def __call__(self, step: StepRecord, /) -> None:
        """Keep one."""
        self.append(step)


def seen(step: StepRecord) -> Seen:
    """All that an observer is told of a step; the order of the plan counts."""
    return (
        step.index, step.start_s, step.duration_s, tuple(step.tokens.items()), step.preempted,
        step.running, step.waiting, step.free_kv_blocks,
    )  # fmt: skip


def first_difference(ours: Sequence[StepRecord], theirs: Sequence[StepRecord]) -> int | None:
    """Place of the first step that is not the same in both, None if all are."""
    for place, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine is None or other is None or seen(mine) != seen(other):
            return place
    return None


def reasons(
    ours: Sequence[StepRecord], theirs: Sequence[StepRecord], place: int, real: str
) -> Iterator[str]:
    """Why a step differs, as far as can be told; ``real`` is what the other engine is called."""
    if place >= len(ours) or place >= len(theirs):
        longer, rest = ("light", ours) if place >= len(theirs) else (real, theirs)
        yield f"only {longer} has this step; it goes on for {len(rest) - place} more"
        return
    mine, other = ours[place], theirs[place]
    if mine.start_s != other.start_s:
        yield f"starts at {mine.start_s!r} s on light and {other.start_s!r} s on {real}"
    started = {i for step in theirs[:place] for i in step.tokens}
    yield from _only_in(mine, other, "light", started)
    yield from _only_in(other, mine, real, started)
    for request_id, tokens in mine.tokens.items():
        n = other.tokens.get(request_id, tokens)
        if n != tokens:
            yield f"{request_id} computes {tokens} tokens on light and {n} on {real}"
    for name, only in (
        ("light", set(mine.preempted) - set(other.preempted)),
        (real, set(other.preempted) - set(mine.preempted)),
    ):
        if only:
            yield f"only {name} preempts {', '.join(sorted(only))}"
    if mine.tokens == other.tokens and list(mine.tokens) != list(other.tokens):
        yield "the same tokens in another order"
    for what, a, b in (
        ("running requests", mine.running, other.running),
        ("waiting requests", mine.waiting, other.waiting),
        ("free KV blocks", mine.free_kv_blocks, other.free_kv_blocks),
        ("duration", mine.duration_s, other.duration_s),
    ):
        if a != b:
            yield f"{what}: {a!r} on light, {b!r} on {real}"


def _only_in(step: StepRecord, other: StepRecord, name: str, started: set[str]) -> Iterator[str]:
    only = [i for i in step.tokens if i not in other.tokens]
    news = [i for i in only if i not in started]
    again = [i for i in only if i in started]
    if news:
        yield f"only {name} starts {', '.join(news)}"
    if again:
        yield f"only {name} computes {', '.join(again)}, which had started before"
