"""Tokens are chosen from logits by transformers' rules."""

import numpy as np
import pytest

from lamina.infer.choosing import TokenChoice

LOGITS = np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]))
TEXT = np.array([[0, 1], [3, 3]])


def chosen(choice: TokenChoice, made: int = 0, rows: int = 1) -> set[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    found = [choice.tokens(LOGITS.copy(), TEXT, made, rng)[:, 0] for _ in range(rows)]
    return {tuple(row.tolist()) for row in found}


def test_the_likeliest() -> None:
    assert TokenChoice().plain
    assert chosen(TokenChoice()) == {(0, 3)}


def test_a_penalty_for_tokens_that_the_text_has() -> None:
    choice = TokenChoice(repetition_penalty=10.0)
    assert not choice.plain
    assert chosen(choice) == {(2, 2)}
    logits = np.array([[2.0, 1.5, -1.0, -1.5]])
    assert (
        TokenChoice(repetition_penalty=2.0).tokens(logits, np.array([[0, 2]]), 0, np.random.default_rng(0))
        == 1
    )
    np.testing.assert_array_equal(logits, [[1.0, 1.5, -2.0, -1.5]])


def test_an_end_that_may_not_come_yet() -> None:
    choice = TokenChoice(min_new_tokens=2, stops=(0, 3))
    assert chosen(choice, made=1) == {(1, 2)}
    assert chosen(choice, made=2) == {(0, 3)}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_p": 0.9, "top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
    ],
)
def test_draws_among_the_likeliest(options: dict[str, float], first: set[int]) -> None:
    found = chosen(TokenChoice(temperature=1.0, **options), rows=400)  # type: ignore[arg-type]
    assert {row[0] for row in found} == first
    assert {3 - row[1] for row in found} == first
