"""The declared memory limit: enforced by the system, survived by the process, lifted in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SCRIPT = """
import resource, sys
sys.path.insert(0, {tests!r})
import torch
from kvfrontier.engines._memory import MemoryLimit, _status_bytes
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import is_out_of_memory
from kvfrontier.registry import STRATEGIES, WORKLOADS
from tiny import tiny_llama
from toy_tokenizer import toy_tokenizer
torch.set_num_threads(1)

def session(prefill, spare_mb, **shape):
    limit = MemoryLimit(torch.device("cpu"), _status_bytes("VmRSS") / 1e9 + spare_mb / 1e3)
    return TorchSession(tiny_llama(vocab=len(toy_tokenizer()), **shape), toy_tokenizer(), prefill, limit=limit)
"""


def run(code):
    script = SCRIPT.format(tests=str(TESTS)) + code
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_allocation_beyond_it_raises_and_the_process_lives_on():
    out = run("""
before = resource.getrlimit(resource.RLIMIT_DATA)
held = session("sdpa", 200)
held.open(STRATEGIES.get("full")())
small = torch.ones(100_000_000 // 4)
try:
    torch.ones(300_000_000 // 4)
except Exception as error:
    print(is_out_of_memory(error))
again = torch.ones(50_000_000 // 4)
held.close()
print(resource.getrlimit(resource.RLIMIT_DATA) == before, len(torch.ones(300_000_000 // 4)) > 0)
""")
    assert out == ["True", "True", "True"]


@pytest.mark.parametrize("strategy", ["h2o", "full"])
def test_the_materialised_matrix_meets_it_long_before_fused_attention(strategy):
    out = run(f"""
for prefill in ("eager", "sdpa"):
    held = session(prefill, 150)
    workload = WORKLOADS.get("memory_boundary")(least_tokens=256, most_tokens=4096, output_tokens=2)
    found = {{m.metric: m.value for m in workload.run(held, STRATEGIES.get({strategy!r})(), 0)}}
    print(int(found["longest_context_tokens"]), int(found["boundary_found"]))
    held.close()
""")
    eager, eager_found, fused, fused_found = map(int, out)
    assert eager_found == 1
    assert 0 < eager < fused / 1.5
    assert (fused, fused_found) == (4096, 0)


def test_what_was_freed_goes_back_to_the_system_before_the_next_search():
    """The allocator keeps pieces of the size of a short prompt's tensors: they are no use to a large one."""
    out = run("""
held = session("sdpa", 1000)
pieces = [torch.ones(25_000) for _ in range(2000)]
del pieces[::2]
del pieces
before = _status_bytes("VmRSS")
held.free_unused()
print((before - _status_bytes("VmRSS")) // 10**6)
""")
    assert int(out[0]) > 30


@pytest.mark.parametrize("strategy", ["offload", "infinigen(overlap=layer)"])
def test_threads_of_a_link_and_of_its_kernels_are_there_before_memory_is_scarce(strategy):
    """They would fail with another error than want of memory, or (OpenMP's) end the process."""
    out = run(f"""
from kvfrontier.cache.link import Link
from kvfrontier.strategies._named import build
torch.set_num_threads(2)
held = session("sdpa", 400, layers=3)
link = held.open(build({strategy!r})).cache.layers[0].link
copies = torch.ones(1_000_000), torch.empty(1_000_000)
resource.setrlimit(resource.RLIMIT_DATA, (_status_bytes("VmData") + 2_000_000, resource.RLIM_INFINITY))
link.fetch_async(*copies).wait()
print(int(copies[1].sum()))
try:
    Link().submit(lambda: None, torch.device("cpu"))
except Exception as error:
    print(is_out_of_memory(error))
""")
    assert out == ["1000000", "True"]
