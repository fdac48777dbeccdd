"""Steps in which the same requests decode and nothing else can happen."""

from __future__ import annotations

from batchpolicy.step_cost import StepCost, StepShape
from batchpolicy_sim.batch import Batch


def stretch(
    batch: Batch, cost: StepCost, now_s: float, until_s: float, most: int
) -> tuple[float, int]:
    """Go on until a request ends, blocks run short, ``until_s`` or ``most`` steps; time, steps.

    For a batch of ``decodes`` alone, when nobody waits or who waits could not start. The
    times are those of single steps to the last bit, as they are added up in the same way.
    """
    decodes, pool, cached = batch.decodes, batch.pool, batch.cached
    entering, ending, size = decodes.entering, decodes.ending, decodes.block_tokens
    count = decodes.count
    steps = 0
    while steps < most and now_s < until_s and decodes.beat not in ending:
        need = entering[decodes.beat % size]
        if need > pool.free:
            break
        if need:
            pool.take(need)
        if cached is not None:
            for job in decodes.filling_now():
                cached.fill(job, decodes.computed(job) + 1)
        steps += 1
        now_s += cost(StepShape(0, 0.0, 0, count, decodes.context, count))
        decodes.advance(now_s)
    return now_s, steps
