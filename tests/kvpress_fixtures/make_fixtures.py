"""Write tests/golden/kvpress.json: what kvpress keeps of the model and prompt of tests/kvpress_model.py.

    python tests/kvpress_fixtures/make_fixtures.py [FOLDER]

kvpress needs an older transformers than kvfrontier, so this makes an environment of its own in FOLDER (a temporary one
by default, about 1 GB) from requirements.txt, and runs itself there. tests/golden/test_kvpress.py reads the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
INSIDE = "--inside"
FIXTURE = TESTS / "golden" / "kvpress.json"
# name -> press, its settings. Ratios are of what goes; every one of them leaves whole tokens of the 64.
PRESSES = {
    "snapkv": ("SnapKVPress", {"compression_ratio": 0.75, "window_size": 6, "kernel_size": 5}),
    "snapkv_unpooled": ("SnapKVPress", {"compression_ratio": 0.5, "window_size": 8, "kernel_size": 1}),
    "streaming_llm": ("StreamingLLMPress", {"compression_ratio": 0.75, "n_sink": 4}),
    "tova": ("TOVAPress", {"compression_ratio": 0.75}),
    "pyramid_kv": ("PyramidKVPress", {"compression_ratio": 0.5, "window_size": 4, "kernel_size": 5, "beta": 4}),
}


def measure() -> None:
    """Inside the environment: run every press, write the fixture."""
    sys.path.insert(0, str(TESTS))
    import kvpress
    import torch
    import transformers
    from kvpress_model import same_llama, same_prompt

    def prefill(model, press):
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad(), press(model):
            model.model(torch.tensor([same_prompt()]), past_key_values=cache)
        return [layer.keys[0] for layer in cache.layers]

    model = same_llama()
    everything = prefill(model, kvpress.KnormPress(0.0))

    def kept(press):
        """Positions by layer and head, found by the keys themselves: no two positions share a key."""
        found = []
        for keys, whole in zip(prefill(model, press), everything, strict=True):
            same = (keys[:, :, None] == whole[:, None]).all(-1)  # [kv_heads, kept, tokens]
            assert (same.sum(-1) == 1).all()
            found.append([sorted(head.tolist()) for head in same.int().argmax(-1)])
        return found

    class Watched(kvpress.ObservedAttentionPress):
        def score(self, *arguments):
            scores.append(super().score(*arguments))
            return scores[-1]

    scores: list[torch.Tensor] = []
    prefill(same_llama("eager"), Watched(0.5))
    written = {
        "made_with": {"kvpress": "0.5.5", "torch": torch.__version__, "transformers": transformers.__version__},
        "settings": {name: settings for name, (_, settings) in PRESSES.items()},
        "kept": {name: kept(getattr(kvpress, press)(**settings)) for name, (press, settings) in PRESSES.items()},
        "observed_attention": [[[float(f"{v:.7g}") for v in head] for head in layer[0].tolist()] for layer in scores],
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in written.items())
    FIXTURE.write_text(f"{{{lines}}}\n")


def run_in_own_environment(folder: Path) -> None:
    """Make the environment where it is not there yet, and this program's other half run in it."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, __file__, INSIDE], check=True, env=clean)


if __name__ == "__main__":
    if sys.argv[1:] == [INSIDE]:
        measure()
    elif len(sys.argv) > 1:
        run_in_own_environment(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_in_own_environment(Path(folder))
