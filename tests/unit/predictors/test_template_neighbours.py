from __future__ import annotations

import numpy as np

from batchpolicy_predictors import hashing
from batchpolicy_predictors.template_neighbours import TemplateNeighbours, signatures
from tests.unit.predictors.batches import batch


def prompt(template: int, number: int) -> list[int]:
    """30 tokens of the template, 4 of its own, 20 of the template."""
    head, tail = range(template, template + 30), range(template + 500, template + 520)
    return [*head, *range(10**6 + 4 * number, 10**6 + 4 * number + 4), *tail]


def taught(**parameters: int | float) -> TemplateNeighbours:
    made = TemplateNeighbours.model_validate(parameters)
    for k in range(60):
        short, long = prompt(1000, k), prompt(5000, k + 100)
        made.observe(batch(2, ids=[short, long]), np.array([20, 900]))
    return made


def said(predictor: TemplateNeighbours, *ids: list[int]) -> list[float]:
    found = predictor.predict(batch(len(ids), ids=list(ids))).quantile(0.5)
    return [round(value) for value in found.tolist()]


def test_prompts_of_a_template_are_expected_as_long_as_its_answers() -> None:
    short, long = said(taught(), prompt(1000, 9999), prompt(5000, 8888))
    # Thirty-two neighbours of 36, the rest is everybody's.
    assert 20 <= short <= 30
    assert 600 <= long <= 900


def test_other_prompts_and_those_without_ids_get_the_history() -> None:
    predictor = taught()
    other, none = said(predictor, list(range(70_000, 70_060)), [])
    assert other == none
    assert [round(x) for x in predictor.predict(batch()).quantile(0.5)] == [none]


def test_the_oldest_prompts_are_forgotten() -> None:
    predictor = taught(memory=40)
    for k in range(40):
        predictor.observe(batch(ids=[prompt(1000, 500 + k)]), np.array([300]))
    assert said(predictor, prompt(1000, 7777))[0] > 250
    # Of the other template nobody is left.
    assert said(predictor, prompt(5000, 7777)) == said(predictor, [])


def test_the_part_of_equal_smallest_hashes_estimates_the_part_of_shared_shingles() -> None:
    ids = [prompt(1000, k) for k in range(40)]
    hashes, there = hashing.shingles(hashing.ends(ids))
    found = signatures(batch(40, ids=ids))
    sets = [set(h[t].tolist()) for h, t in zip(hashes, there, strict=True)]
    true = np.array([[len(a & b) / len(a | b) for b in sets] for a in sets])
    estimated = (found[:, None] == found[None]).mean(axis=2)
    assert np.abs(estimated - true).mean() < 0.1
