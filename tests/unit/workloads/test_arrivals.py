"""`arrivals`: when requests come, and what is derived from the times at which a server answers them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.plan.project import Project
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads._arrival_process import drawn
from one_server import READ_S, OneServer
from pydantic import ValidationError

FULL = STRATEGIES.get("full")()
SMALL = {"context_tokens": 20, "output_tokens": 4, "requests": 6, "text": "generated", "repeats": 2}
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:01.5,30,3
2024-05-10 00:00:03,10,1
2024-05-10 00:00:04,20,2
"""


def made(**settings):
    return WORKLOADS.get("arrivals")(**{**SMALL, **settings})


def measure(session, seed=0, **settings):
    found = defaultdict(list)
    for value in made(**settings).run(session, FULL, seed):
        found[value.metric].append(value)
    return found


def values(found, metric, repeat=0):
    return [item.value for item in found[metric] if item.repeat == repeat]


def arrivals(seed=0, **settings):
    """Times at which requests come, by repeat."""
    session = OneServer()
    measure(session, seed, **settings)
    return [[request.arrival_s for request in requests] for requests, _ in session.served]


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """config/data.yaml with a trace and a wheel."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "data.yaml").write_text(
        f"mine: {{trace: mine.csv}}\ntexts: {{requirement: a==1, sha256: {'ab' * 32}, size_bytes: 1}}\n"
    )
    (tmp_path / "mine.csv").write_text(TRACE)
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    return Project.at(tmp_path)


def traced(**settings):
    return {"context_tokens": None, "output_tokens": None, "trace": "mine", **settings}


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (100.0, 0.1)])
def test_gaps_have_the_rate_and_the_variation_that_is_asked_for(burstiness, variation):
    times = [
        request.arrival_s for request in drawn(made(request_rate=4.0, burstiness=burstiness, requests=4000), "0-0")
    ]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0 and min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(1 / 4, rel=0.12)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.12)


def test_the_seed_and_the_repeat_decide_when_requests_come_and_the_rate_only_scales_it():
    first, second = arrivals()
    assert first != second and arrivals() == [first, second] and arrivals(seed=1) != [first, second]
    faster = arrivals(request_rate=2.0)
    assert faster == [[pytest.approx(time / 2) for time in times] for times in (first, second)]


def test_lengths_are_fixed_or_uniform_around_their_mean():
    requests = drawn(made(requests=300, length_spread=0.5), "0-0")
    contexts, outputs = zip(*((request.context_tokens, request.output_tokens) for request in requests), strict=True)
    assert (min(contexts), max(contexts), min(outputs), max(outputs)) == (10, 30, 2, 6)
    assert fmean(contexts) == pytest.approx(20, rel=0.1) and fmean(outputs) == pytest.approx(4, rel=0.1)
    found = measure(OneServer())
    assert set(values(found, "context_tokens")) == {20} and set(values(found, "output_tokens")) == {4}


def test_times_count_from_the_arrival_whoever_was_served_before():
    found = measure(OneServer(), request_rate=1000.0)
    one = 20 * READ_S + 3 * 0.01
    (came,) = arrivals(request_rate=1000.0, repeats=1)
    for number, (ttft, queue, latency, time) in enumerate(
        zip(*(values(found, name) for name in ("ttft_s", "queue_s", "request_latency_s")), came, strict=True)
    ):
        assert queue == pytest.approx(number * one - time) and ttft == pytest.approx(queue + 0.02)
        assert latency == pytest.approx((number + 1) * one - time)
    assert values(found, "tpot_s") == [pytest.approx(0.01)] * 6


def test_rates_are_those_of_the_whole_and_goodput_counts_who_was_in_time():
    found = measure(OneServer(), request_rate=1000.0, ttft_limit_s=0.1, tpot_limit_s=0.011)
    (came,) = arrivals(request_rate=1000.0, repeats=1)
    last = 6 * (20 * READ_S + 3 * 0.01)
    in_time = [float(ttft <= 0.1) for ttft in values(found, "ttft_s")]
    assert 0 < sum(in_time) < 6 and values(found, "within_limits") == in_time
    assert values(found, "goodput_requests_per_s") == [pytest.approx(sum(in_time) / last)]
    assert values(found, "requests_per_s") == [pytest.approx(6 / last)]
    assert values(found, "output_tokens_per_s") == [pytest.approx(24 / last)]
    assert values(found, "offered_requests_per_s") == [pytest.approx(5 / came[-1])]
    late = measure(OneServer(), ttft_limit_s=9.0, tpot_limit_s=0.009)
    assert set(values(late, "within_limits")) == {0.0} and values(late, "goodput_requests_per_s") == [0.0]


def test_every_repeat_has_its_own_values_and_texts():
    session = OneServer()
    found = measure(session, context_tokens=200)
    for metric in ("requests_per_s", "preemptions", "kv_peak_blocks", "kv_device_bytes", "achieved_budget"):
        assert [item.repeat for item in found[metric]] == [0, 1]
    (one, _), (two, _) = session.served
    texts = [tuple(request.prompt) for request in (*one, *two)]
    assert len(set(texts)) == 12
    assert session.done == ["warm-up", "serve", "serve"]
    assert not any(may_find for _, may_find in session.served), "hits are as the engine's settings have them"


def test_a_trace_says_when_requests_come_and_how_long_they_are(traces):
    session = OneServer()
    found = measure(session, **traced())
    for requests, _ in session.served:
        assert [(request.arrival_s, len(request.prompt), request.output_tokens) for request in requests] == [
            (0.0, 30, 3), (1.5, 10, 1), (2.5, 20, 2),
        ]  # fmt: skip
    assert values(found, "offered_requests_per_s") == [2 / 2.5]
    assert [item.request for item in found["tpot_s"] if item.repeat == 0] == [0, 2], "one token has no time per token"
    assert values(found, "within_limits") == [1.0] * 3
    assert made(**traced()).data() == ("mine",)


def test_a_trace_is_cut_and_scaled(traces):
    session = OneServer()
    measure(session, **traced(request_rate=10.0))
    assert [request.arrival_s for request in session.served[0][0]] == [pytest.approx(x) for x in (0.0, 0.12, 0.2)]
    session = OneServer()
    measure(session, **traced(request_rate=10.0, requests=2))
    assert [request.arrival_s for request in session.served[0][0]] == [0.0, pytest.approx(0.1)]


def test_what_a_model_or_a_file_cannot_be_asked_is_unsupported(traces):
    short = ModelSpec("short", max_positions=32)
    with pytest.raises(Unsupported, match=r"context_tokens 30 \+ output_tokens 4 = 34 tokens; short has 32 positions"):
        made(length_spread=0.5, output_tokens=3).check(short)
    with pytest.raises(Unsupported, match=r"context_tokens 30 \+ output_tokens 3 = 33 tokens"):
        made(**traced()).check(short)
    with pytest.raises(Unsupported, match=r"texts of config/data\.yaml has no `trace`"):
        made(**traced(trace="texts")).check(short)
    made(**traced(trace="gone")).check(short)  # an unknown name is the plan's to report


def test_a_trace_and_what_it_says_itself_exclude_each_other():
    with pytest.raises(ValidationError, match="a trace without output_tokens, burstiness: it says when requests come"):
        made(**traced(output_tokens=4, burstiness=2.0))


def test_an_engine_that_answers_too_early_or_stops_early_is_an_error():
    class Hasty(OneServer):
        def serve(self, strategy, requests, may_find=False):
            done = super().serve(strategy, requests, may_find)
            done.token_times_s[1] = [time - 5 for time in done.token_times_s[1]]
            return done

    with pytest.raises(KVFrontierError, match=r"answered request 1 4\.9\d+ s before it came"):
        measure(Hasty(), request_rate=0.01)
