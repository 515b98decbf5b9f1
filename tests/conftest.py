"""Settings every test shares: one thread a process, no network for model libraries, compiled code kept."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# The tests start hundreds of processes, and with it each of them would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A script's job in the background ignores Ctrl-C, and so would everything that the tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
