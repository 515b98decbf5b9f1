"""The folder of blocks on disk goes with its process, however that ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from kvfrontier.engines._vllm_tier import DiskTier

PROGRAM = """
import sys, time
from kvfrontier.engines._vllm_tier import DiskTier
tier = DiskTier()
(tier.folder / "prompt").mkdir()
(tier.folder / "prompt" / "layer").write_bytes(bytes(100))
print(tier.folder, flush=True)
time.sleep(60)
"""


def test_it_is_cleared_and_removed():
    tier = DiskTier()
    (tier.folder / "prompt").mkdir()
    (tier.folder / "prompt" / "layer").write_bytes(bytes(100))
    assert tier.bytes == 100
    tier.clear()
    assert tier.bytes == 0 and tier.folder.is_dir()
    tier.remove()
    assert not tier.folder.exists()


def test_it_is_gone_when_its_process_was_killed():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.02)
