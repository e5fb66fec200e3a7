"""Owner tokens: nobody may ever guess or repeat one."""

from __future__ import annotations

import base64
import multiprocessing
import random

import pytest

from redlock import new_token

CHILDREN, EACH = 8, 1_250


def _tokens(seed: int) -> list[str]:
    random.seed(seed)
    return [new_token() for _ in range(EACH)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # forking is what is tested
def test_forked_children_never_draw_the_same_token() -> None:
    """L65: 10,000 tokens of 8 children that were forked with the same random state are all distinct."""
    _tokens(1)
    with multiprocessing.get_context("fork").Pool(CHILDREN) as pool:
        drawn = [token for tokens in pool.map(_tokens, [1] * CHILDREN, chunksize=1) for token in tokens]
    assert len(set(drawn)) == CHILDREN * EACH


def test_token_has_128_bits() -> None:
    """L65: 16 bytes, none of which is always the same."""
    decoded = [base64.urlsafe_b64decode(token + "==") for token in _tokens(1)]
    assert {len(value) for value in decoded} == {16}
    assert all(len({value[position] for value in decoded}) > 100 for position in range(16))


def test_token_does_not_come_from_the_seeded_generator() -> None:
    """L65: whoever knows the seed of `random` knows no token."""
    assert not set(_tokens(1)) & set(_tokens(1))
