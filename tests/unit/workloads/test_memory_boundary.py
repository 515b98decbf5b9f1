"""`memory_boundary`: what it tries, what it reports, and that only want of memory is an answer."""

from __future__ import annotations

import pytest
from kvfrontier.engines.base import Generation, Session
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from toy_tokenizer import toy_tokenizer

FULL = STRATEGIES.get("full")()


class LimitedSession(Session):
    """Runs out of memory beyond `room_tokens`, or fails with another error there."""

    def __init__(self, room_tokens, failure):
        self.spec, self.tokenizer, self.memo = ModelSpec("limited"), toy_tokenizer(), {}
        self.room_tokens, self.failure, self.tried, self.freed = room_tokens, failure, [], 0

    def open(self, strategy):
        raise AssertionError("whole generations are asked for")

    def generate(self, strategy, prompts, output_tokens):
        (prompt,) = prompts
        self.tried.append(len(prompt))
        if len(prompt) > self.room_tokens:
            raise self.failure
        return Generation([[1] * output_tokens], [[1.0] * output_tokens], [("kv_device_bytes", "decode", len(prompt))])

    def free_unused(self):
        self.freed += 1

    def close(self):
        pass


def measure(room_tokens, failure=None, **settings):
    workload = WORKLOADS.get("memory_boundary")(least_tokens=16, most_tokens=400, **settings)
    session = LimitedSession(room_tokens, failure or MemoryError())
    return session, list(workload.run(session, FULL, seed=0))


def value(found, metric):
    (only,) = (measurement.value for measurement in found if measurement.metric == metric)
    return only


@pytest.mark.parametrize("room", [16, 17, 100, 255, 256, 399])
def test_the_longest_context_is_found_to_within_the_resolution(room):
    session, found = measure(room, resolution=0.05)
    longest = value(found, "longest_context_tokens")
    assert longest <= room <= longest * 1.05 + 1
    assert value(found, "boundary_found") == 1
    assert value(found, "kv_device_bytes") == longest  # the memory of that prompt, not of the last one tried
    fits = {m.phase: m.value for m in found if m.metric == "context_fits"}
    assert fits == {f"context={tokens}": float(tokens <= room) for tokens in session.tried}
    assert session.freed == 1 + sum(tokens > room for tokens in session.tried), "once before the first prompt"


def test_a_limit_that_is_never_reached_is_said():
    session, found = measure(10_000)
    assert session.tried == [16, 32, 64, 128, 256, 400]
    assert (value(found, "longest_context_tokens"), value(found, "boundary_found")) == (400, 0)


def test_nothing_fits():
    session, found = measure(5)
    assert session.tried == [16]
    assert (value(found, "longest_context_tokens"), value(found, "boundary_found")) == (0, 1)


def test_another_error_is_the_cells_own():
    with pytest.raises(RuntimeError, match="shapes differ"):
        measure(20, RuntimeError("shapes differ"))


def test_it_needs_a_declared_limit():
    needs, torch_engine = WORKLOADS.get("memory_boundary").needs, ENGINES.get("torch")
    assert needs - torch_engine().offers == {"memory_limit_gb"}
    assert needs <= torch_engine(memory_limit_gb=4).offers
