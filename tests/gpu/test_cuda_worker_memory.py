"""One worker on a CUDA device, one cell after another: numbers, tokens and the memory that stays allocated."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.metrics import METRICS
from kvfrontier.run.worker import give_back
from tiny_project import SPEED, TinyProject

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing on a GPU is tested"),
]
FIDELITY = {"name": "fidelity", "text": "generated", "context_tokens": 600, "continuation_tokens": 6, "documents": 2}
MAX_POSITIONS = 2**31
GROWTH_BYTES = 2**20
"""What libraries keep once: cuBLAS workspaces are taken before, in the first cells."""


@pytest.fixture
def tiny(tmp_path):
    return TinyProject(tmp_path, max_positions=MAX_POSITIONS)


def repeatable(row: dict) -> list[tuple]:
    return [tuple(item.values()) for item in row["measurements"] if METRICS[item["metric"]].nature != "noisy"]


def test_a_small_cell_after_one_that_ran_out_of_memory_gives_what_it_gives_alone(tiny):
    total = torch.cuda.get_device_properties(0).total_memory
    # 128 B a token and tensor: two KV heads of 16 floats each
    tokens = total // (1024 * 128) + 1
    large = tiny.cells(SPEED | {"batch_size": 1024, "output_tokens": tokens, "warmup_output_tokens": 0}, device="gpu")[
        0
    ]
    small = tiny.cells(SPEED, FIDELITY, strategy=["full", {"name": "h2o", "budget": 0.3}], device="gpu")
    alone = {cell.cell_id: repeatable(tiny.run(tiny.worker(), cell)[1]) for cell in small}
    worker = tiny.worker()
    for cell in small:
        report, row = tiny.run(worker, large)
        assert (report.status, report.recycle, row["reason_class"]) == ("oom", "after oom", "OutOfMemoryError")
        assert row["reason_bytes"] > total // 2
        report, row = tiny.run(worker, cell)
        assert report.status == "ok" and repeatable(row) == alone[cell.cell_id]


def test_ten_cells_in_a_row_leave_no_memory_allocated(tiny):
    strategies = ["full", {"name": "h2o", "budget": 0.3}, "streaming_llm"]
    workloads = [SPEED | {"context_tokens": 640, "batch_size": 4}, FIDELITY]
    cells = tiny.cells(*workloads, strategy=strategies, seed=[0, 1], device="gpu")
    worker = tiny.worker()
    for cell in cells[:4]:
        tiny.run(worker, cell)
    held = []
    for cell in cells[-10:]:
        assert tiny.run(worker, cell)[0].status == "ok"
        give_back()
        held.append(torch.cuda.memory_allocated())
    assert len(held) == 10 and max(held) - held[0] <= GROWTH_BYTES, f"KiB: {[size // 2**10 for size in held]}"
