from __future__ import annotations

from batchpolicy.workload import WorkloadRequest
from batchpolicy_sim.job import Job
from batchpolicy_sim.kv.cached import CachedPool
from batchpolicy_sim.kv.text import Texts
from tests.unit.sim.light import Served, request

SIZE = 8


class Shelf:
    """A pool of blocks of 8 tokens, and jobs in it by name."""

    def __init__(self, blocks: int, *requests: WorkloadRequest) -> None:
        self.pool = CachedPool(blocks, SIZE)
        texts = Texts(requests, SIZE)
        self.jobs: dict[str, Job] = {}
        for place, r in enumerate(requests):
            self.jobs[r.id] = job = Job(r, place, 0.0)
            job.chain = texts.chain(r)

    def start(self, name: str, tokens: int) -> int:
        """Let a job compute its first tokens; gives those that were there."""
        job = self.jobs[name]
        hit = self.pool.adopt(job)
        self.pool.grow(job, max(hit, tokens))
        return hit

    def end(self, *names: str) -> None:
        for name in names:
            self.pool.release(self.jobs[name])

    def hits(self, name: str) -> int:
        return self.pool.hit(self.jobs[name])[0]


def test_equal_beginnings_are_found_and_the_block_of_the_last_token_is_not() -> None:
    a = request("a", 20, 4, prefix_id="p", prefix_tokens=16)
    shelf = Shelf(
        9,
        a,
        request("b", 30, 4, prefix_id="p", prefix_tokens=16),
        request("whole", 16, 4, prefix_id="p", prefix_tokens=16),
        request("other", 30, 4, prefix_id="q", prefix_tokens=16),
        request("adapted", 30, 4, prefix_id="p", prefix_tokens=16, lora="A"),
    )
    assert shelf.start("a", 20) == 0
    assert [shelf.hits(name) for name in ("b", "whole", "other", "adapted")] == [16, 8, 0, 0]
    # Three held, and of those b takes two more.
    assert shelf.pool.free == 6
    assert shelf.start("b", 30) == 16
    assert shelf.pool.free == 4
    assert shelf.pool.held_alone(shelf.jobs["a"]) == 1


def test_blocks_without_a_name_go_first_then_those_freed_longest_ago_from_the_end() -> None:
    shelf = Shelf(
        6, request("a", 24, 2), request("b", 17, 2), request("c", 8, 2), request("d", 24, 9)
    )
    shelf.start("a", 24)
    shelf.start("b", 17)
    assert shelf.pool.free == 0
    shelf.end("b", "a")
    # One block has no name: that of b's last token. Then b's second, b's first, a's third.
    for taken, left_of_b, left_of_a in ((1, 16, 16), (2, 8, 16), (3, 0, 16), (5, 0, 8)):
        shelf.pool.take(taken - (6 - shelf.pool.free))
        assert (shelf.hits("b"), shelf.hits("a")) == (left_of_b, left_of_a)


def test_a_block_that_was_computed_twice_is_found_while_one_of_them_is_left() -> None:
    shelf = Shelf(
        6,
        request("a", 8, 2, prefix_id="p", prefix_tokens=8),
        request("b", 8, 2, prefix_id="p", prefix_tokens=8),
        request("c", 9, 2, prefix_id="p", prefix_tokens=8),
    )
    # The block of the last token is computed by each.
    assert [shelf.start(name, 8) for name in ("a", "b")] == [0, 0]
    shelf.end("a")
    assert shelf.pool.free == 5
    assert shelf.pool.hit(shelf.jobs["c"]) == (8, 1)
    shelf.pool.take(5)
    assert shelf.pool.hit(shelf.jobs["c"]) == (8, 0)


def test_a_turn_finds_the_text_of_the_turn_before_with_its_answer() -> None:
    served = Served(
        request("t1", 20, 6, session="s"),
        request("t2", 40, 2, at=50.0, session="s"),
        request("t3", 24, 2, at=60.0, session="s"),
        request("cut", 60, 2, at=70.0, session="s"),
        prefix_cache=True,
    )
    # 20 + 6 tokens, of which the last was emitted only: 3 blocks of 8. The third turn's
    # prompt ends inside of that text, and its last token is computed again.
    assert served.of("cached_tokens") == {"t1": 0, "t2": 24, "t3": 16, "cut": 24}


def test_named_blocks_are_shared_as_far_as_they_are_equal_from_the_start() -> None:
    blocks = {"prefix_block_tokens": 16}
    served = Served(
        request("a", 60, 2, prefix_blocks=(1, 2, 3), **blocks),
        request("b", 60, 2, at=10.0, prefix_blocks=(1, 2, 4), **blocks),
        request("c", 60, 2, at=20.0, prefix_blocks=(2, 1), **blocks),
        request("d", 60, 2, at=30.0, prefix_blocks=(1, 2, 3), **blocks),
        prefix_cache=True,
    )
    assert served.of("cached_tokens") == {"a": 0, "b": 32, "c": 0, "d": 48}


def test_a_preempted_request_finds_its_own_blocks() -> None:
    served = Served(request("a", 15, 6), request("b", 15, 6), kv_blocks=5, prefix_cache=True)
    plain = Served(request("a", 15, 6), request("b", 15, 6), kv_blocks=5)
    assert served.plans[:3] == plain.plans[:3]
    assert served.steps[2].preempted == ("b",)
    # b's two full blocks stayed while a took the free one: it needs 1 more, and computes 1.
    assert served.plans[5:7] == [{"a": 1}, {"b": 1}]
    assert served.of("recomputed_tokens") == {"a": 0, "b": 0}


def test_a_key_says_the_whole_text_up_to_its_block_however_it_was_put_together() -> None:
    one = request("one", 32, 9, session="s")
    two = request("two", 36, 9, session="s")
    three = request("three", 44, 9, session="s")
    texts = Texts((one, two, three), SIZE)
    keys = [texts.chain(r).keys(4) for r in (one, two, three)]
    assert keys[0][:4] == keys[1][:4] == keys[2][:4]
    again = Texts((one, two, three), SIZE)
    assert [again.chain(r).keys(4) for r in (one, two, three)] == keys
