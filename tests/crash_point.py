"""Trouble at one exact place (Python tells audit hooks of a file operation before it does it), and wrong clocks.

Part of the sitecustomize of a `faults.Trial`. $KVFRONTIER_TROUBLE is `WHAT|EVENT|PATTERN|NUMBER|TOKEN`: whoever is
about to do EVENT (os.rename, os.remove, os.mkdir, open) to a path like PATTERN for the NUMBERth time is killed, once,
where WHAT is `kill` (whoever but Ray's workers, which a run outlives) or `kill_worker` (they alone); where it is the
name of an errno (ENOSPC), that is raised from then on. TOKEN is made then.

$KVFRONTIER_CLOCK names a file that says by how many seconds the clock is wrong, at any moment.
"""

import builtins
import datetime
import errno
import fnmatch
import os
import signal
import sys
import time
import types

PATH_OF = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "open": 0}  # its place among the arguments of the event


def _arm(what: str, event: str, pattern: str, number: int, token: str) -> None:
    seen, kills = 0, what.startswith("kill")

    def is_worker() -> bool:
        return os.path.basename(sys.argv[0]) == "default_worker.py"

    def hook(name: str, arguments: tuple) -> None:
        nonlocal seen
        if name != event or not isinstance(arguments[PATH_OF[event]], str | os.PathLike):
            return
        path = os.path.abspath(arguments[PATH_OF[event]])
        if not fnmatch.fnmatch(path, pattern):
            return
        if kills and is_worker() != (what == "kill_worker"):
            return
        seen += 1
        if seen < number or (kills and os.path.exists(token)):
            return
        if not os.path.exists(token):
            os.mkdir(token)
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)), path)

    sys.addaudithook(hook)


if "KVFRONTIER_TROUBLE" in os.environ:
    _what, _event, _pattern, _number, _token = os.environ["KVFRONTIER_TROUBLE"].split("|")
    _arm(_what, _event, _pattern, int(_number), _token)


def _set_clocks(file: str) -> None:
    real_time, real_import = time.time, builtins.__import__

    def now_s() -> float:
        with open(file) as offset:
            return real_time() + float(offset.read() or 0)

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(now_s(), tz)

    def importing(name, globals=None, *others, **named):
        # Our own modules only: compiled code does not bear another datetime.
        if name == "datetime" and str((globals or {}).get("__name__")).startswith("kvfrontier."):
            return types.SimpleNamespace(**{**vars(datetime), "datetime": Datetime})
        return real_import(name, globals, *others, **named)

    builtins.__import__ = importing
    time.time, time.time_ns = now_s, lambda: int(now_s() * 1e9)


if "KVFRONTIER_CLOCK" in os.environ:
    _set_clocks(os.environ["KVFRONTIER_CLOCK"])
