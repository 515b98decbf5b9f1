"""A small campaign with invented numbers, in the real plan's and rows' shape: for tests of store and report only.

Two models, three strategies, three workloads; one cell failed, one unsupported, one not run yet, a few modelled.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.store.heartbeat import Heartbeat, here, process_mark
from kvfrontier.store.rows import write_row

MODELS = ("test-alpha", "test-beta")
STRATEGIES = (
    Component("full"),
    *(Component("streaming_llm", (("budget", budget),)) for budget in (0.1, 0.3, 0.5)),
    *(Component("h2o", (("budget", budget),)) for budget in (0.1, 0.3, 0.5)),
)
WORKLOADS = (
    Component("speed", (("batch_size", 1), ("context_tokens", 512), ("output_tokens", 32))),
    Component("speed", (("batch_size", 4), ("context_tokens", 512), ("output_tokens", 32))),
    Component("speed", (("batch_size", 4), ("context_tokens", 1024), ("output_tokens", 32))),
    Component("retention", (("context_tokens", 1024), ("conversations", 12))),
    Component("fidelity", (("context_tokens", 1024),)),
)
PLAN_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("shard", "cell_id", "fingerprint", "cell")]
    + [("parts", pa.map_(pa.string(), pa.string())), ("parameters", pa.string())]
    + [(name, pa.string()) for name in ("model", "engine", "device", "strategy", "strategy_label")]
    + [("budget", pa.float64()), ("workload", pa.string()), ("task", pa.string())]
    + [(name, pa.int64()) for name in ("batch_size", "context_tokens", "output_tokens", "seed")]
    + [(name, pa.string()) for name in ("source", "status", "reason")]
)
HALF_IN_HOST = ("h2o", 0.5)
LAYERS, HEADS, TOKEN_BYTES = 4, 2, 2048
Measured = Callable[[Cell], Iterable[Measurement]]


def cells(models: tuple[str, ...] = MODELS) -> Iterator[Cell]:
    """Every cell of the campaign; the last ones are modelled by the simulator."""
    for model in models:
        for workload in WORKLOADS:
            for strategy in STRATEGIES:
                yield Cell(model, Component("torch", (("prefill", "sdpa"),)), "cpu", strategy, workload)
    for strategy in STRATEGIES:
        yield Cell(models[0], Component("simulator"), "test-gpu", strategy, WORKLOADS[2])


def write_campaign(
    results: Path,
    name: str = "synthetic",
    models: tuple[str, ...] = MODELS,
    run: bool = True,
    evil_reason: str | None = None,
) -> Path:
    """Write plan and rows (none without `run`) under `results/name`; returns that folder."""
    campaign_dir = results / name
    planned = [planned_cell(cell) for cell in cells(models)]
    (campaign_dir / "plan").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(planned, schema=PLAN_SCHEMA), campaign_dir / "plan" / "cells.parquet")
    for number, (cell, plan) in enumerate(zip(cells(models), planned, strict=True)):
        if run and number != 3:  # one cell has not been run yet
            row = stored_row(cell, plan, number)
            write_row(campaign_dir, row | ({"reason": evil_reason} if evil_reason and row["reason"] else {}))
            if number == 0:  # and its row by an older version of the code
                write_row(campaign_dir, stored_row(cell, {**plan, "fingerprint": "f" * 32}, number))
    return campaign_dir


def write_cells(results: Path, chosen: Iterable[Cell], measured: Measured) -> Path:
    """Write plan and rows of these cells, all `ok`, under `results/chosen`; returns that folder."""
    folder = results / "chosen"
    planned = [(cell, planned_cell(cell)) for cell in chosen]
    (folder / "plan").mkdir(parents=True)
    table = pa.Table.from_pylist([plan for _, plan in planned], schema=PLAN_SCHEMA)
    pq.write_table(table, folder / "plan" / "cells.parquet")
    for cell, plan in planned:
        write_row(folder, stored_row(cell, plan, 0, measured))
    return folder


def planned_cell(cell: Cell) -> dict:
    """The row of `cell` in plan/cells.parquet."""
    workload = dict(cell.workload.params)
    budget = dict(cell.strategy.params).get("budget")
    strategy = {"h2o": {"recent_share": 0.5, "decode_evict": "every"}, "streaming_llm": {"num_sinks": 4}, "full": {}}
    unsupported = cell.model == MODELS[-1] and cell.strategy.name == "h2o" and cell.workload.name == "fidelity"
    return {
        "shard": f"{_as_file_name(cell.model)}.{cell.engine.name}.{cell.device}.000-0123456789ab",
        "cell_id": cell.cell_id,
        "fingerprint": f"{cell.cell_id}{'0' * 12}",
        "cell": json.dumps(cell.as_dict()),
        "parts": [("package:torch", "0.0-test"), ("strategy_code", "abc")],
        "parameters": json.dumps(
            {
                "engine": {**cell.engine.as_dict(), "threads": 1},
                "strategy": {**strategy.get(cell.strategy.name, {}), **cell.strategy.as_dict()},
                "workload": {**cell.workload.as_dict(), "depths": [0, 0.5], "alternatives": 20},
            }
        ),
        "model": cell.model,
        "engine": cell.engine.name,
        "device": cell.device,
        "strategy": cell.strategy.name,
        "strategy_label": cell.strategy.label,
        "budget": budget,
        "workload": cell.workload.name,
        "task": workload.get("task", cell.workload.name),
        "batch_size": workload.get("batch_size"),
        "context_tokens": workload.get("context_tokens"),
        "output_tokens": workload.get("output_tokens"),
        "seed": cell.seed,
        "source": "model" if cell.engine.name == "simulator" else "measured",
        "status": "unsupported" if unsupported else None,
        "reason": "h2o cannot do this <b>here</b> (test)" if unsupported else "",
    }


def _as_file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "~", model)[:100]


def stored_row(cell: Cell, plan: dict, number: int, measured: Measured | None = None) -> dict:
    """The row a run would store; the numbers are invented, the same at every call, or those of `measured`."""
    measured = measured or (lambda cell: measure(cell, random.Random(cell.cell_id)))
    status = plan["status"] or ("oom" if number == 5 else "ok")
    reasons = {"oom": "asked for 3.0 GiB, 1.0 GiB free (test)", "unsupported": plan["reason"], "ok": None}
    return {
        "cell_id": cell.cell_id,
        "fingerprint": plan["fingerprint"],
        "parts": dict(plan["parts"]),
        "cell": plan["cell"],
        "status": status,
        "reason": reasons[status],
        "reason_class": "OutOfMemoryError" if status == "oom" else None,
        "reason_phase": {"oom": "decode", "unsupported": "plan"}.get(status),
        "achieved_budget": plan["budget"] or 1.0,
        "source": plan["source"],
        "attempt": 1,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        "wall_s": 2.5,
        "provenance": {"host": "test-host", "git_revision": "0000000", "python": "3.11"},
        "measurements": list(measured(cell)) if status == "ok" else [],
    }


def a_beat(
    shard: str, pid: int | None = None, place: str | None = None, mark: str | None = None, **values: object
) -> Heartbeat:
    """A heartbeat of this process, or another, on this machine, or another, whose shard began a minute ago."""
    now = datetime.now(UTC)
    pid = os.getpid() if pid is None else pid
    common = {"host": "node1", "started_at": now - timedelta(minutes=1), "updated_at": now}
    common |= {"total": 10, "settled": 2, "counts": {"ok": 5}}
    started = process_mark(pid) if mark is None else mark
    return Heartbeat(shard, pid, started, here() if place is None else place, **{**common, **values})


def measure(cell: Cell, draw: random.Random) -> Iterator[Measurement]:
    """Invented measurements in the shape the workloads yield."""
    budget = dict(cell.strategy.params).get("budget", 1.0)
    workload = dict(cell.workload.params)
    tokens, batch = workload["context_tokens"], workload.get("batch_size", 1)
    size = 1 + MODELS.index(cell.model) if cell.model in MODELS else 1
    for phase, more in (("prefill", 0), ("decode", workload.get("output_tokens", 0))):
        full = (tokens + more) * batch * TOKEN_BYTES * size
        yield Measurement("kv_full_bytes", full, phase)
        in_host = round(full * budget / 2) if (cell.strategy.name, budget) == HALF_IN_HOST else 0
        yield Measurement("kv_device_bytes", round(full * budget) - in_host, phase)
        yield Measurement("kv_host_bytes", in_host, phase)
        yield Measurement("kv_aux_bytes", round(full * 0.01) if cell.strategy.name == "h2o" else 0, phase)
        yield Measurement("process_peak_bytes", 3e8 + full, phase)
    yield from {"speed": _speed, "retention": _retention, "fidelity": _fidelity}[cell.workload.name](cell, budget, draw)


def _speed(cell: Cell, budget: float, draw: random.Random) -> Iterator[Measurement]:
    workload = dict(cell.workload.params)
    for repeat in range(3):
        noise = 1 + 0.03 * draw.gauss(0, 1)
        prefill = (
            1e-3 * workload["context_tokens"] * workload["batch_size"] * (1.2 if cell.strategy.name == "h2o" else 1)
        )
        decode = 0.02 * workload["output_tokens"] * (0.5 + budget)
        yield Measurement("e2e_latency_s", (prefill + decode) * noise, repeat=repeat)
        tokens = workload["batch_size"] * workload["output_tokens"]
        yield Measurement("output_tokens_per_s", tokens / (prefill + decode) * noise, repeat=repeat)
        for metric, share in (("offered", 1.2), ("", 1.0), ("goodput", 0.8)):  # what arrivals would measure
            rate = share * noise / (prefill + decode)
            yield Measurement(f"{metric}_requests_per_s".lstrip("_"), rate, repeat=repeat)
        for request in range(workload["batch_size"]):
            yield Measurement("ttft_s", prefill * noise, repeat=repeat, request=request)
            yield Measurement("tpot_s", decode / workload["output_tokens"] * noise, repeat=repeat, request=request)


def _retention(cell: Cell, budget: float, draw: random.Random) -> Iterator[Measurement]:
    chance = 0.92 if cell.strategy.name == "full" else 0.25 + budget * (1.2 if cell.strategy.name == "h2o" else 0.9)
    for phase, request in [(f"depth={depth:g}", number) for depth in (0, 0.5) for number in range(12)]:
        correct = draw.random() < chance
        yield Measurement("retention_correct", float(correct), phase, request=request, turn=8)
        yield Measurement("retention_margin", 2.0 * correct - 0.5 + 0.3 * draw.random(), phase, request=request, turn=8)
        if request < 4:
            yield Measurement("control_no_context", float(request == 0 and phase == "depth=0"), phase, request=request)
            yield Measurement("control_recent_only", 0.0, phase, request=request)
        for layer in range(LAYERS):
            for head in range(HEADS):
                survived = min(1.0, budget * (1.5 if cell.strategy.name == "h2o" and layer > 1 else 0.8))
                survived = 1.0 if cell.strategy.name == "full" else survived
                yield Measurement("fact_survival", survived, phase, request=request, layer=layer, head=head)
    for phase, request in [(f"distance={turns}", number) for turns in (1, 8) for number in range(12)]:
        yield Measurement("second_question_correct", float(draw.random() < chance), phase, request=request, turn=0)


def _fidelity(cell: Cell, budget: float, draw: random.Random) -> Iterator[Measurement]:
    for request in range(8):
        distance = 0.0 if cell.strategy.name == "full" else (1 - budget) * (0.5 + draw.random())
        yield Measurement("kl_divergence", distance, request=request)
        for turn in range(4):
            yield Measurement("top1_agreement", float(draw.random() > distance / 3), request=request, turn=turn)
    yield from _task(cell, budget, random.Random(cell.cell_id))


def _task(cell: Cell, budget: float, draw: random.Random) -> Iterator[Measurement]:
    """What lm_eval would measure, in the cells of fidelity: both compare documents with the full cache."""
    for request in range(12):
        margin = draw.gauss(0.5, 1) * budget
        yield Measurement("context_tokens", 24, request=request)
        yield Measurement("acc", float(margin > 0), request=request)
        yield Measurement("answer_margin", margin, request=request)
        yield Measurement("margin_change", margin - 0.5, request=request)
        yield Measurement("full_agreement", float(draw.random() < 0.5 + budget / 2), request=request)
        if cell.strategy.name != "full":
            yield Measurement("effective_budget", max(budget, 0.25), request=request)
            yield Measurement("budget_bites", float(request > 0), request=request)
