"""vLLM itself as an engine, in its own environment, which is made here if need be. On a CPU, with the packaged model.

What it says against our engine and against its allocator replayed, to the block; what it refuses.
"""

from __future__ import annotations

import json
import os
import subprocess
from math import ceil
from pathlib import Path

import pytest
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.models.loader import load_model
from kvfrontier.plan.device import Device
from kvfrontier.registry import STRATEGIES
from packaged_model import packaged_model
from paged_replay import Replay
from prefix_cache import PrefixCache
from vllm_shared import ARRIVALS, CHATS, DOES_NOT_START, MARK, OUTPUT_TOKENS, ROWS, same_prompts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
TESTS = Path(__file__).parents[1]
BLOCK = 32


@pytest.fixture(scope="module")
def facts(vllm_environment):
    code = vllm_environment.variables()["PYTHONPATH"]
    told = subprocess.run(
        [vllm_environment.python, TESTS / "vllm_inside.py"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{code}"},
    )  # fmt: skip
    lines = [line.removeprefix(MARK) for line in told.stdout.splitlines() if line.startswith(MARK)]
    return {**dict(map(json.loads, lines)), "errors": told.stderr}


def of(facts, name):
    assert name in facts, facts["errors"][-4000:]
    return facts[name]


def steps_of(told):
    return [(blocks, tuple(tokens), preempted) for blocks, tokens, preempted in told["steps"]]


def test_the_same_greedy_tokens_as_our_engine(facts):
    told = of(facts, "plain")
    model, tokenizer = load_model(packaged_model(), Device("cpu", "cpu"), "float32")
    assert same_prompts(tokenizer) == told["prompts"] and len(told["prompts"]) == ROWS
    ours = TorchSession(model).generate(STRATEGIES.get("full")(), told["prompts"], OUTPUT_TOKENS).tokens
    assert told["tokens"] == ours


def test_times_are_those_of_single_tokens(facts):
    for first, last, count in of(facts, "plain")["times"]:
        assert 0 < first < last and count == OUTPUT_TOKENS


@pytest.mark.parametrize(
    ("name", "replay", "output_tokens"),
    [
        ("plain", Replay(pool=0, block=BLOCK, step_tokens=256, running_at_once=8), OUTPUT_TOKENS),
        ("whole", Replay(pool=0, block=BLOCK, step_tokens=256, running_at_once=8, chunked=False), OUTPUT_TOKENS),
        ("tight", Replay(pool=0, block=BLOCK, step_tokens=4096, running_at_once=16), 40),
    ],
)
def test_blocks_in_use_are_those_of_the_allocator_replayed(facts, name, replay, output_tokens):
    told = of(facts, name)
    replay.pool = told["pool"]
    expected = replay.steps([len(prompt) for prompt in told["prompts"]], output_tokens)
    assert steps_of(told) == expected
    blocks, tokens, _ = max(expected, key=lambda step: step[0])
    memory, counted, block_bytes = told["memory"], told["counted"], told["block_bytes"]
    assert counted["kv_peak_blocks"] == blocks
    assert counted["preemptions"] == sum(step[2] for step in expected)
    assert bool(counted["preemptions"]) == (name == "tight"), "a small pool, and nobody gives way?"
    peak = max(("prefill", "decode"), key=lambda phase: memory[f"kv_device_bytes {phase}"])
    assert memory[f"kv_device_bytes {peak}"] == blocks * block_bytes
    assert memory[f"kv_waste_bytes {peak}"] == pytest.approx((blocks - sum(tokens) / BLOCK) * block_bytes)
    assert memory[f"kv_reserved_bytes {peak}"] == (told["pool"] + 1) * block_bytes
    assert block_bytes == BLOCK * 30 * 3 * 64 * 2 * 4
    assert told["kept"][0] == told["kept"][1]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_all_of_it(facts):
    whole, chunks = of(facts, "whole"), of(facts, "plain")
    assert whole["tokens"] == chunks["tokens"]
    first, other = steps_of(whole)[0][1], steps_of(chunks)[0][1]
    assert sum(first) < sum(other) == 256 and first == other[: len(first)]


def test_steps_that_vllm_refuses_are_those_that_the_plan_refuses(facts):
    told = of(facts, "settings")
    assert not any(told["starts"])
    for asked, complaint in zip(DOES_NOT_START, told["does_not"], strict=True):
        assert "max_num_batched_tokens (" in complaint, asked


def test_a_closed_engine_gives_its_memory_back(facts):
    held = of(facts, "held")
    assert len(held) > 5
    growth = max(held) - held[0]
    assert growth < 2**27, f"half a pool, a quarter of the weights; MiB: {[round(size / 2**20) for size in held]}"


def test_a_settings_peak_is_nearly_the_same_in_a_process_that_had_others(facts):
    first, later = of(facts, "peaks")
    # Modules that others needed stay, and some of the heap; a pool that stayed would be 14 %.
    assert abs(later / first - 1) < 0.1, f"MB: {first / 1e6:.0f} of the first engine, {later / 1e6:.0f} of the last"


def test_a_connector_is_given_what_it_reads(facts):
    given = {name: told["kv_connector_extra_config"] for name, told in of(facts, "settings")["connectors"].items()}
    assert {name for name, own in given.items() if own} == {"OffloadingConnector", "SimpleCPUOffloadConnector"}
    assert given["OffloadingConnector"] == given["SimpleCPUOffloadConnector"] == {"cpu_bytes_to_use": 4 * 2**30}


def test_equal_beginnings_are_found_or_refused(facts):
    told = of(facts, "prefixes")
    whole_blocks = (len(told["prompt"]) - 1) // BLOCK * BLOCK / len(told["prompt"])
    assert told["first"]["counted"]["prefix_hit_rate"] == told["again"]["counted"]["prefix_hit_rate"] == 0
    assert "KVFrontierError" in told["refused"] and "allow_prefix_hits: true" in told["refused"]
    assert told["kept"]["counted"]["prefix_hit_rate"] == pytest.approx(whole_blocks)
    assert told["first"]["tokens"] == told["again"]["tokens"] == told["kept"]["tokens"]


def turns_of(told):
    """Of each turn, in the order in which they were served: all prompts of the batch, their answers, what was found."""
    for call in told["calls"]:
        yield [prompt for prompt, *_ in call["requests"]], call["tokens"], call["found"]


def test_the_hits_of_chats_are_those_of_the_cache_replayed(facts):
    for name, batches in (("chats", 6), ("together", 3)):
        cache, told, hits = PrefixCache(BLOCK), of(facts, "prefixes")[name], []
        for prompts, answers, found in turns_of(told):
            for prompt, tokens in zip(prompts, found, strict=True):
                assert tokens == cache.found(prompt), f"{name}: turn {len(hits)}"
                cache.keep(prompt)  # of one step: who comes next finds it
                hits.append(tokens)
            for prompt, answer in zip(prompts, answers, strict=True):
                cache.keep(prompt + answer[:-1])
        assert len(told["calls"]) == batches and len(hits) == CHATS["chats"] * CHATS["turns"]
        assert hits[0] == 0 and all(tokens >= 64 for tokens in hits[1:]), "the system prompt at least"
        read = sum(len(prompt) for prompts, *_ in turns_of(told) for prompt in prompts)
        rates = [value for metric, value, phase, *_ in told["values"] if metric == "prefix_hit_rate" and not phase]
        assert rates == [pytest.approx(sum(hits) / read)]


def test_a_cache_of_prefixes_changes_no_answer(facts):
    with_it, without = of(facts, "prefixes")["chats"], of(facts, "serving")["chats"]
    assert [call["tokens"] for call in with_it["calls"]] == [call["tokens"] for call in without["calls"]]
    assert [call["requests"] for call in with_it["calls"]] == [call["requests"] for call in without["calls"]]
    assert all(call["found"] == [0] for call in without["calls"])


def test_requests_are_served_when_they_come(facts):
    told = of(facts, "serving")
    (call,) = told["came"]["calls"]
    came = [arrival for *_, arrival in call["requests"]]
    assert len(came) == ARRIVALS["requests"] and came == sorted(came) and came[-1] > 0
    for times, queue in zip(call["times"], call["queue"], strict=True):
        assert 0 <= queue < times[0] and times == sorted(times) and len(times) == ARRIVALS["output_tokens"]
    assert call["phases"] == [""], "reading and decoding go on beside each other"
    assert call["tokens"] == told["at_once"], "when a request comes changes no answer"
    rate = {metric: value for metric, value, *_ in told["came"]["values"]}["requests_per_s"]
    assert rate <= len(came) / came[-1], "nobody is answered before the last one comes"


def test_what_lies_on_disk_is_read_again(facts):
    told = of(facts, "disk")
    cold, warm = told["cold"], told["warm"]
    assert cold["counted"]["prefix_hit_rate"] == 0 and warm["counted"]["prefix_hit_rate"] > 0.7
    assert cold["tokens"] == warm["tokens"]
    on_disk = cold["memory"]["kv_disk_bytes decode"]
    held = len(told["prompt"]) // BLOCK * cold["block_bytes"]
    assert held <= on_disk < 1.02 * held, "keys and values of whole blocks, and headers of files"
    assert not told["is_left"]


def test_a_window_lets_go_of_blocks(facts):
    wide, narrow = (of(facts, "windows")[window] for window in ("4096", "64"))
    longest = max(of(facts, "plain")["prompts"], key=len)
    row = facts["plain"]["prompts"].index(longest)
    assert wide["tokens"][0] == facts["plain"]["tokens"][row], "a window over everything changes nothing"
    assert narrow["tokens"] != wide["tokens"]
    whole = ceil((len(longest) + OUTPUT_TOKENS - 1) / BLOCK)
    assert wide["steps"][-1][0] == whole and narrow["steps"][-1][0] <= 64 // BLOCK + 1 < whole
    assert narrow["kept"][0] is None, "vLLM does not tell which tokens it still has"


def test_a_type_that_writes_garbage_is_not_believed(facts):
    told = of(facts, "types")
    assert "Unsupported: kv_cache_dtype float16 cannot be believed" in told["garbage"]
    assert "needs AVX-512 or AMX" in told["unable"] or told["fp8"] > 0.5


def test_what_it_does_not_do_is_said(facts):
    told = of(facts, "refusals")
    assert "Unsupported: vLLM answers whole batches" in told["steps"]
    assert "Unsupported: vLLM's cache keeps every token" in told["evicting"]
    assert "Unsupported: prompt and output are 6002 tokens; max_model_len, or the pool" in told["too_long"]
