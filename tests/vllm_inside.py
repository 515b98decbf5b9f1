"""Runs in an environment of vLLM, where there is no pytest: its engine on the packaged model; prints facts as JSON.

The engines are made in turn, each a few seconds: what they say is judged by tests/integration/test_vllm_engine.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

from kvfrontier.engines._vllm_limits import Connector
from kvfrontier.engines.base import Generation
from kvfrontier.engines.vllm import VLLM
from kvfrontier.errors import KVFrontierError
from kvfrontier.models.loader import locate
from kvfrontier.plan.catalog import load_devices, load_models
from kvfrontier.plan.project import Project
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.run.worker import held_bytes
from vllm_shared import (
    ARRIVALS,
    CHATS,
    DOES_NOT_START,
    MARK,
    MODEL,
    OUTPUT_TOKENS,
    STARTS,
    STEPS,
    TIGHT,
    WHOLE,
    same_prompts,
)

FULL = STRATEGIES.get("full")()
BLOCK = 32
PROJECT = Project.find()
MODEL_ENTRY, CPU = load_models(PROJECT)[MODEL], load_devices(PROJECT)["cpu"]
Facts = dict[str, Any]
HELD: list[int] = []
"""Bytes that the process holds after each engine."""


@contextmanager
def running(**settings: Any) -> Iterator[Any]:
    """A session whose pool is small and whose blocks are short."""
    session = VLLM(**{"kv_cache_memory_bytes": 2**28, "block_size": BLOCK, **settings}).load(MODEL_ENTRY, CPU)
    try:
        yield session
    finally:
        session.close()
        HELD.append(held_bytes())


def told(session: Any, generation: Generation) -> Facts:
    """What one batch said, in words of JSON."""
    return {
        "tokens": generation.tokens,
        "times": [[row[0], row[-1], len(row)] for row in generation.token_times_s],
        "steps": session._watch.steps,
        "counted": {metric: value for metric, _, value in generation.counted},
        "memory": {f"{metric} {phase}": value for metric, phase, value in generation.memory},
        "pool": session._watch.pool_blocks - 1,
        "block_bytes": session._watch.block_bytes,
        "kept": [generation.kept_tokens[0][0] if generation.kept_tokens else None, generation.seen_tokens],
    }


def batch(session: Any, prompts: Sequence[list[int]], output_tokens: int = OUTPUT_TOKENS) -> Facts:
    return told(session, session.generate(FULL, prompts, output_tokens))


def served(session: Any, workload: str, **settings: Any) -> Facts:
    """What a workload asked of the scheduler, what came of it, and what the workload made of that."""
    calls, serve = [], session.serve

    def watched(strategy: Any, requests: Sequence[Any], may_find: bool = False) -> Generation:
        done = serve(strategy, requests, may_find)
        calls.append({
            "requests": requests, "tokens": done.tokens, "times": done.token_times_s, "found": done.found_tokens,
            "queue": done.queue_s, "phases": sorted({phase for _, phase, _ in done.memory}),
        })  # fmt: skip
        return done

    session.serve = watched
    try:
        values = list(WORKLOADS.get(workload)(warmup_output_tokens=0, **settings).run(session, FULL, seed=0))
    finally:
        del session.serve
    return {"calls": calls, "values": values}


def refusal(ask: Callable[[], Any]) -> str:
    """What is said where something is refused; empty where it is not."""
    try:
        ask()
    except KVFrontierError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def plain(**asked: Any) -> Facts:
    """Prompts of several lengths, more of them than run at once, the longer ones read in chunks."""
    with running(**(asked or STEPS)) as session:
        prompts = same_prompts(session.tokenizer)
        return {"prompts": prompts, **batch(session, prompts)}


def whole() -> Facts:
    """The same, each read in one step."""
    return plain(**WHOLE)


def tight() -> Facts:
    """Too few blocks for all that run."""
    with running(**TIGHT) as session:
        prompts = [prompt[:90] for prompt in same_prompts(session.tokenizer) if len(prompt) >= 90][:4]
        return {"prompts": prompts, **batch(session, prompts, 40)}


def prefixes() -> Facts:
    """Equal beginnings, found or refused."""
    with running(enable_prefix_caching=True) as session:
        longest = max(same_prompts(session.tokenizer), key=len)
        first, again = batch(session, [longest]), batch(session, [longest])
        refused = refusal(lambda: batch(session, [longest, longest]))
        session._settings = replace(session._settings, allow_prefix_hits=True)
        batch(session, [longest])
        kept = batch(session, [longest])
        session._settings = replace(session._settings, allow_prefix_hits=False)
        chats = served(session, "prefix_reuse", **CHATS)
        together = served(session, "prefix_reuse", **CHATS, at_once=2)
    return {"prompt": longest, "first": first, "again": again, "refused": refused, "kept": kept,
            "chats": chats, "together": together}  # fmt: skip


def serving(session: Any) -> Facts:
    """Chats without a cache of prefixes; requests that come one after the other, and the same ones at once."""
    chats, came = served(session, "prefix_reuse", **CHATS), served(session, "arrivals", **ARRIVALS)
    prompts = [request.prompt for request in came["calls"][0]["requests"]]
    return {"chats": chats, "came": came, "at_once": session.generate(FULL, prompts, ARRIVALS["output_tokens"]).tokens}


def disk() -> Facts:
    """Blocks written to disk, forgotten in the pool, and read again."""
    with running(kv_connector="ExampleConnector", allow_prefix_hits=True) as session:
        longest = max(same_prompts(session.tokenizer), key=len)
        cold = batch(session, [longest])
        session._engine.reset_prefix_cache()
        warm, folder = batch(session, [longest]), session._disk.folder
    return {"prompt": longest, "cold": cold, "warm": warm, "is_left": folder.exists()}


def windows() -> Facts:
    """A window that is wider than everything, and one that is not."""
    found = {}
    for window in (4096, 64):
        with running(sliding_window=window) as session:
            longest = max(same_prompts(session.tokenizer), key=len)
            found[str(window)] = batch(session, [longest])
    return found


def types() -> Facts:
    """A type that starts and writes garbage; one that may run here."""
    from kvfrontier.engines._vllm_probe import agreement, believed

    folder, half = locate(MODEL_ENTRY), VLLM(kv_cache_dtype="float16")
    found = {"garbage": refusal(lambda: believed(half, MODEL_ENTRY, CPU, folder))}
    eighth = VLLM(kv_cache_dtype="fp8")
    found["unable"] = refusal(lambda: eighth.check_device(CPU))
    if not found["unable"]:
        found["fp8"] = agreement(eighth, MODEL_ENTRY, CPU, folder)
    return found


def settings() -> Facts:
    """What vLLM says of settings of its steps, without starting, and what it is given of connectors."""
    from kvfrontier.engines._vllm_settings import engine_args
    from vllm.usage.usage_lib import UsageContext

    def args(asked: Facts) -> Any:
        return engine_args(VLLM(**asked), MODEL_ENTRY, CPU, locate(MODEL_ENTRY), None)

    def complaint(asked: Facts) -> str:
        try:
            args(asked).create_engine_config(UsageContext.ENGINE_CONTEXT)
        except ValueError as error:
            return str(error)
        return ""

    connectors = [{"kv_connector": name} for name in get_args(Connector)]
    return {
        "starts": [complaint(asked) for asked in STARTS], "does_not": [complaint(asked) for asked in DOES_NOT_START],
        "connectors": {asked["kv_connector"]: args(asked).kv_transfer_config for asked in connectors},
    }  # fmt: skip


def peak(session: Any) -> float:
    """Resident bytes of this process at most, of a batch whose like was answered before."""
    prompts = same_prompts(session.tokenizer)
    return [batch(session, prompts)["memory"]["process_peak_bytes decode"] for _ in range(2)][-1]


def main() -> None:
    with running() as session:
        first = peak(session)
        steps = refusal(lambda: session.open(FULL))
        evicting = refusal(lambda: session.generate(STRATEGIES.get("streaming_llm")(), [[1, 2, 3]], 2))
        too_long = refusal(lambda: session.generate(FULL, [[1] * 6000], 2))
        tell("refusals", {"steps": steps, "evicting": evicting, "too_long": too_long})
        tell("serving", serving(session))
    for ask in (settings, plain, whole, tight, prefixes, disk, windows):
        tell(ask.__name__, ask())
    tell("held", HELD)
    with running() as session:
        tell("peaks", [first, peak(session)])
    tell("types", types())  # which may well end the process


def tell(name: str, facts: Facts | list[Any]) -> None:
    """One line, whole or not at all."""
    sys.stdout.write(f"{MARK}{json.dumps([name, facts])}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
