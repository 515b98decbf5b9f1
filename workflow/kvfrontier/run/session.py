"""What the Snakefile needs of a campaign: its plan, the paths of its files, and the lock on its results."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kvfrontier
from kvfrontier import __version__
from kvfrontier.errors import ConfigError, KVFrontierError, Problem, did_you_mean
from kvfrontier.plan.disk import PlanIndex, prepare, read_index
from kvfrontier.plan.document import show
from kvfrontier.plan.names import receipt_name
from kvfrontier.plan.project import Project, declared_name
from kvfrontier.run.outdated import is_outdated
from kvfrontier.store.files import drop_leftovers, write_atomically
from kvfrontier.store.heartbeat import drop_dead
from kvfrontier.store.ledger import drop_untrue, ledger_file
from kvfrontier.store.running import hold, is_running, keep_plan_of_run

logger = logging.getLogger(__name__)

PRESENTING = ("store", "analysis", "reports")


@dataclass(frozen=True)
class CampaignFiles:
    """Paths of the files that rules exchange. `lock`: the descriptor that holds the campaign, or None."""

    index: PlanIndex
    lock: int | None = None

    @property
    def campaign(self) -> str:
        return self.index.campaign

    @property
    def campaign_dir(self) -> Path:
        """Relative where it is inside the working folder, so that nothing Snakemake notes breaks when that is moved."""
        folder, here = self.index.campaign_dir, Path.cwd()
        return folder.relative_to(here) if folder.is_relative_to(here) else folder

    @property
    def ledgers(self) -> list[str]:
        """What `measure` jobs produce, one a shard."""
        return [str(ledger_file(self.campaign_dir, shard.name)) for shard in self.index.shards]

    @property
    def published(self) -> str:
        """A file that changes when the set of shards does: a shard that was taken out leaves no newer ledger behind."""
        return str(self.campaign_dir / "plan" / "published.json")

    @property
    def receipts(self) -> list[str]:
        """What `fetch_model` and `fetch_data` jobs produce."""
        return [self._receipt("model", name) for name in self.index.models] + self._data_receipts()

    @property
    def inputs(self) -> list[str]:
        """All that some rule reads."""
        return [self.published, *self.receipts, *self.ledgers]

    def inputs_of(self, wildcards: Any) -> list[str]:
        """Receipts of what a shard's cells read."""
        models = {shard.name: shard.model for shard in self.index.shards}
        model = _known(models, wildcards.shard, "shard")
        return [self._receipt("model", model)] * (model in self.index.models) + self._data_receipts()

    def _data_receipts(self) -> list[str]:
        return [self._receipt("data", name) for name in self.index.data]

    def _receipt(self, kind: str, name: str) -> str:
        return str(self.campaign_dir / "inputs" / kind / receipt_name(name))

    def received(self, receipt: str) -> str:
        """The model or data source whose receipt has this name."""
        names = {receipt_name(name): name for name in (*self.index.models, *self.index.data)}
        return _known(names, receipt, "receipt")


def _known(found: Mapping[str, str], name: str, what: str) -> str:
    """Raises KVFrontierError for a target that somebody typed and no job makes."""
    if name not in found:
        raise KVFrontierError(f"the plan has no {what} '{name}'. {did_you_mean(name, found)}".rstrip())
    return found[name]


def chosen_campaign(config: Mapping[str, Any]) -> str | None:
    """The campaign of `--config campaign=NAME`; None without one. Raises ConfigError for any other `--config`."""
    unknown = [key for key in config if key != "campaign"]
    if unknown:
        expected = "campaign=NAME, the only one there is"
        raise ConfigError(
            [Problem("--config", key, show(config[key]), expected, did_you_mean(key, ["campaign"])) for key in unknown]
        )
    return None if config.get("campaign") is None else str(config["campaign"])


def open_campaign(name_or_path: str | None, is_main: bool, is_dry: bool) -> CampaignFiles:
    """Make or reuse the plan, and remove ledgers that no longer tell the truth.

    is_main: False in a job that Snakemake started, which only reads the plan.
    is_dry: nothing will run, so the campaign is not locked.
    """
    project = Project.find()
    if not is_main:
        name = declared_name(project.campaign_file(name_or_path))
        return CampaignFiles(read_index(project.campaign_dir(name)))
    index = prepare(project, name_or_path, keep_plan_of_run)
    if is_dry and is_running(index.campaign_dir):
        return CampaignFiles(index)  # the run needs its ledgers, also those that the next one will drop
    # Held until this process ends, however it ends: after `kill -9` there is nothing to unlock.
    lock = None if is_dry else hold(index.campaign_dir)
    drop_dead(index.campaign_dir)
    drop_leftovers(index.campaign_dir)
    for line in drop_untrue(index.campaign_dir, index.shards, index.max_attempts):
        logger.warning("to measure again: %s", line)
    files = CampaignFiles(index, lock)
    _note_published(files, is_outdated(files.campaign_dir, files.inputs))
    return files


def _note_published(files: CampaignFiles, is_outdated: bool) -> None:
    """Write `published` anew only when the set of shards or the code that presents has changed, a ledger is missing, or
    what was presented is outdated.

    A missing ledger, because Snakemake does not miss an input of what it holds up to date. It must see something newer
    that also says something else (it compares checksums), hence the time.
    """
    path = Path(files.published)
    content = {
        "kvfrontier": __version__,
        "code": _presentation(),
        "shards": [shard.name for shard in files.index.shards],
    }
    is_complete = all(Path(ledger).exists() for ledger in files.ledgers)
    if is_outdated or not is_complete or _without_time(path) != content:
        noted = {**content, "at": datetime.now(UTC).isoformat()}
        write_atomically(path, json.dumps(noted, indent=1).encode())


def _presentation() -> str:
    """Hash of everything that turns rows into the database and the report. It makes no measurement stale."""
    package = Path(kvfrontier.__file__).parent
    files = [path for name in PRESENTING for path in sorted((package / name).rglob("*")) if path.is_file()]
    digest = hashlib.sha256((package / "metrics.py").read_bytes())
    for path in files:
        if path.suffix != ".pyc":
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _without_time(path: Path) -> dict[str, Any] | None:
    try:
        noted = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return {name: value for name, value in noted.items() if name != "at"} if isinstance(noted, dict) else None
