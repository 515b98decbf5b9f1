"""`prefix_reuse`: prompts that begin with all that was said before, and what a cache of prefixes finds of them."""

from __future__ import annotations

from collections import defaultdict

import pytest
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads._served_chat import frame_of
from one_server import READ_S, STEP_S, OneServer
from toy_tokenizer import TEMPLATE, toy_tokenizer

FULL = STRATEGIES.get("full")()
SMALL = {
    "chats": 3, "turns": 3, "system_tokens": 50, "message_tokens": 12, "output_tokens": 5, "text": "generated",
}  # fmt: skip
BLOCK = 16


def measure(session, seed=0, **settings):
    found = defaultdict(list)
    for value in WORKLOADS.get("prefix_reuse")(**{**SMALL, **settings}).run(session, FULL, seed):
        found[value.metric].append(value)
    return found


def by_turn(found, metric):
    return {(item.request, item.turn): item.value for item in found[metric] if item.turn is not None}


def prompts_of(session):
    return [[request.prompt for request in requests] for requests, _ in session.served]


def lengths():
    """Of a turn's prompt, by the template's own tokens."""
    frame = frame_of(toy_tokenizer())
    first = len(frame.opening) + 50 + len(frame.before_first) + 12 + len(frame.before_answer)
    return first, 5 + frame.turn_tokens + 12


def test_a_prompt_is_the_one_before_with_its_answer_and_a_new_message():
    session = OneServer()
    measure(session)
    first, more = lengths()
    for chat in range(3):
        (a,), (b,), (c,) = prompts_of(session)[3 * chat : 3 * chat + 3]
        assert [len(a), len(b), len(c)] == [first, first + more, first + 2 * more]
        answers = [[(sum(prompt) * 31 + step) % 250 for step in range(5)] for prompt in (a, b)]
        assert b[: len(a) + 5] == a + answers[0] and c[: len(b) + 5] == b + answers[1]
    text = session.tokenizer.decode(c)
    assert text.startswith("<|im_start|>system\n") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>user\n") == text.count("<|im_start|>assistant\n") == 3


def test_chats_share_the_system_prompt_and_nothing_else():
    session = OneServer()
    measure(session)
    one, two, three = (prompts_of(session)[3 * chat][0] for chat in range(3))
    shared = lengths()[0] - 12 - len(frame_of(session.tokenizer).before_answer)
    assert one[:shared] == two[:shared] == three[:shared]
    assert one[shared:] != two[shared:] != three[shared:] != one[shared:]


@pytest.mark.parametrize("block", [1, 7, 16, 64, 500])
def test_what_is_found_is_whole_blocks_of_what_was_held(block):
    found = by_turn(measure(OneServer(block)), "found_tokens")
    first, more = lengths()
    shared = first - 12 - len(frame_of(toy_tokenizer()).before_answer)
    for chat in range(3):
        # Messages of different chats differ from their first token on, or a block of one token would tell.
        assert found[chat, 0] == (shared // block * block if chat else 0)
        for turn in (1, 2):
            held = first + (turn - 1) * more + 5 - 1
            assert found[chat, turn] == held // block * block


def test_counts_rates_and_times_of_each_turn():
    session = OneServer(BLOCK)
    measured = measure(session)
    context, found, read = (by_turn(measured, f"{name}_tokens") for name in ("context", "found", "read"))
    assert len(context) == 9 and all(read[turn] == context[turn] - found[turn] for turn in context)
    rates = {(item.request, item.turn): item.value for item in measured["prefix_hit_rate"] if item.phase == "turn"}
    assert rates == {turn: found[turn] / context[turn] for turn in context}
    (whole,) = [item.value for item in measured["prefix_hit_rate"] if item.phase == ""]
    assert whole == sum(found.values()) / sum(context.values())
    assert by_turn(measured, "ttft_s") == {turn: pytest.approx(READ_S * read[turn]) for turn in read}
    assert list(by_turn(measured, "tpot_s").values()) == [pytest.approx(STEP_S)] * 9
    seconds = sum(by_turn(measured, "ttft_s").values()) + 9 * 4 * STEP_S
    assert [item.value for item in measured["output_tokens_per_s"]] == [pytest.approx(9 * 5 / seconds)]


def test_peaks_are_the_most_and_preemptions_are_added_up():
    measured = measure(OneServer(BLOCK))
    longest = lengths()[0] + 2 * lengths()[1]
    assert [item.value for item in measured["kv_peak_blocks"]] == [longest]
    assert [(item.value, item.phase) for item in measured["kv_device_bytes"]] == [(1e3 * longest, "prefill")]
    assert [item.value for item in measured["preemptions"]] == [9]
    assert not measured["kv_waste_bytes"], "it is known of the first turn alone"
    assert [item.value for item in measure(OneServer())["kv_waste_bytes"]] == [5.0]


def test_with_and_without_a_cache_the_same_prompts_are_served():
    with_it, without = OneServer(BLOCK), OneServer()
    found, nothing = measure(with_it), measure(without)
    assert prompts_of(with_it) == prompts_of(without)
    assert set(by_turn(nothing, "found_tokens").values()) == {0}
    assert by_turn(found, "ttft_s")[2, 2] < by_turn(nothing, "ttft_s")[2, 2]


def test_chats_are_served_together_where_that_is_asked():
    session = OneServer(BLOCK)
    found = by_turn(measure(session, at_once=2), "found_tokens")
    assert [len(requests) for requests, _ in session.served] == [2, 2, 2, 1, 1, 1]
    alone = by_turn(measure(OneServer(BLOCK)), "found_tokens")
    assert found == alone, "who comes second in a batch finds the first one's blocks"


def test_hits_are_allowed_and_the_first_prompt_finds_nothing():
    session = OneServer(BLOCK)
    measure(session)
    assert session.done == ["warm-up", "free", *["serve"] * 9]
    assert all(may_find for _, may_find in session.served)

    class Leftovers(OneServer):
        def free_unused(self):
            pass

    class SameText(Leftovers):
        def generate(self, strategy, prompts, output_tokens):
            other = OneServer()
            measure(other)
            self.cache.keep(prompts_of(other)[0][0])
            return super().generate(strategy, prompts, output_tokens)

    with pytest.raises(KVFrontierError, match="tokens of the very first prompt were found in a cache"):
        measure(SameText(BLOCK))


def test_the_seed_decides_the_texts():
    sessions = [OneServer() for _ in range(3)]
    for session, seed in zip(sessions, (0, 0, 1), strict=True):
        measure(session, seed)
    one, again, other = map(prompts_of, sessions)
    assert one == again != other


NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.mark.parametrize("template", [None, NO_SYSTEM + TEMPLATE], ids=["transcript", "without a system role"])
def test_templates_without_a_system_prompt_get_the_text_all_the_same(template):
    session = OneServer(BLOCK, toy_tokenizer(template))
    found = by_turn(measure(session), "found_tokens")
    assert found[1, 0] >= 48 and found[0, 2] > found[0, 1] > 48


def test_a_template_that_rewrites_earlier_turns_is_unsupported():
    forgetful = TEMPLATE.replace("{{ m['content'] }}", "{% if loop.last %}{{ m['content'] }}{% endif %}")
    with pytest.raises(Unsupported, match="rewrites earlier turns"):
        measure(OneServer(BLOCK, toy_tokenizer(forgetful)))


def test_a_chat_longer_than_the_model_is_unsupported():
    workload = WORKLOADS.get("prefix_reuse")(**SMALL)
    with pytest.raises(Unsupported, match=r"system_tokens 50 \+ turns 51 = 101 tokens; short has 100 positions"):
        workload.check(ModelSpec("short", max_positions=100))
    session = OneServer()
    session.spec = ModelSpec("just", max_positions=110)
    workload.check(session.spec)
    with pytest.raises(Unsupported, match="just has 110 positions"):
        measure(session)
    assert not session.done


def test_an_engine_that_stops_early_is_an_error():
    class Short(OneServer):
        def serve(self, strategy, requests, may_find=False):
            return super().serve(strategy, [request._replace(output_tokens=4) for request in requests], may_find)

    with pytest.raises(KVFrontierError, match="produced 4 output tokens for request 0, 5 were asked for"):
        measure(Short())
