"""How Python's collector of cycles is kept out of a start of vLLM."""

from __future__ import annotations

import gc

import pytest
from kvfrontier.engines._vllm_process import freeze_once, uncollected


def test_the_collector_rests_and_comes_back_after_a_failure_too():
    with pytest.raises(ValueError, match="no engine"), uncollected():
        assert not gc.isenabled()
        raise ValueError("no engine")
    assert gc.isenabled()


def test_what_a_first_engine_leaves_can_be_collected_before_a_second_one():
    try:
        freeze_once()
        frozen = gc.get_freeze_count()
        left = [[] for _ in range(1000)]
        freeze_once()
        assert frozen > 0 and gc.get_freeze_count() <= frozen and len(left) == 1000
    finally:
        gc.unfreeze()
