"""The engine on CUDA gives what it gives on the CPU: scores, kept sets, logits, bytes; and its memory readings."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.attention import attend_block
from kvfrontier.cache.scores import RowWeights
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from tiny import random_prompts, tiny_llama
from torch_strategies import TORCH_STRATEGIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing on a GPU is tested"),
]
LENGTHS, STEPS = [60, 43, 12], 12


def run(model, strategy, **options):
    """Logits of the prefill, some steps and a further turn, on the CPU; kept positions; bytes."""
    sequences = TorchSession(model, **options).open(strategy)
    logits = [sequences.prefill(random_prompts(LENGTHS), reserve_tokens=STEPS)]
    logits += [sequences.decode([token] * 3) for token in random_prompts([STEPS])[0]]
    logits.append(sequences.fork().extend(random_prompts([5, 9, 2])))
    kept = [layer.cpu() for layer in sequences.kept_positions()]
    return torch.stack([row.float().cpu() for row in logits]), kept, sequences.bytes_by_metric()


@pytest.mark.parametrize("options", [{}, {"prefill": "eager"}, {"prefill": "chunked", "chunk_tokens": 17}], ids=str)
@pytest.mark.parametrize("name", TORCH_STRATEGIES)
def test_float32_on_cuda_equals_the_cpu(name, options):
    plugin = STRATEGIES.get(name)
    strategy = plugin() if plugin.chunk_tokens is None else plugin(chunk_tokens=11)
    on_cpu = run(tiny_llama(), strategy, **options)
    on_cuda = run(tiny_llama().cuda(), strategy, **options)
    torch.testing.assert_close(on_cuda[0], on_cpu[0], atol=1e-3, rtol=1e-3)
    assert all(map(torch.equal, on_cuda[1], on_cpu[1]))
    assert on_cuda[2] == on_cpu[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize(("rows", "length"), [(517, 517), (64, 700), (1, 9)])
@pytest.mark.parametrize(("decay", "delay"), [(1.0, None), (0.98, 40)])
def test_column_sums_of_each_kernel_equal_the_matrix(dtype, kv_heads, rows, length, decay, delay):
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, rows), (kv_heads, length), (kv_heads, length)]
    queries, keys, values = (torch.randn(2, h, n, 64, generator=generator).to("cuda", dtype) for h, n in shapes)
    offset = length - rows
    since = None if delay is None else (torch.arange(length, device="cuda") - offset + delay).expand(2, kv_heads, -1)
    weights = RowWeights(decay, since)
    expected_out, expected = attend_block(queries, keys, values, 0.125, offset, "eager", "eager", weights)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for scoring in ("lse", "two_pass"):
        out, mass = attend_block(queries, keys, values, 0.125, offset, "sdpa", scoring, weights)
        torch.testing.assert_close(mass, expected, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(out, expected_out, atol=tolerance, rtol=tolerance)


def test_memory_readings_cover_the_device():
    generation = TorchSession(tiny_llama().cuda()).generate(STRATEGIES.get("h2o")(), random_prompts([64, 64]), 4)
    metrics = {(metric, phase) for metric, phase, size in generation.memory if size > 0}
    for phase in ("prefill", "decode"):
        assert {("allocator_peak_bytes", phase), ("device_used_bytes", phase)} <= metrics


def test_running_out_of_memory_is_torchs_own_error():
    session = TorchSession(tiny_llama().cuda(), prefill="eager")
    free, _ = torch.cuda.mem_get_info()
    tokens = int((free / 8) ** 0.5)  # the score matrix of 4 heads takes twice what is free
    session.model.config.max_position_embeddings = tokens
    with pytest.raises(torch.cuda.OutOfMemoryError):
        session.open(STRATEGIES.get("full")()).prefill([[5] * tokens])
