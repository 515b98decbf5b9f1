"""Settings every test shares: one thread a process, no network for model libraries, compiled code kept."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# The tests start hundreds of processes, and with it each of them would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
