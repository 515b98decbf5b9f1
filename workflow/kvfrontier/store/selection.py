"""Rows by what a person calls them: the beginning of a fingerprint, a commit, a campaign, CAMPAIGN@COMMIT."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.errors import KVFrontierError, did_you_mean
from kvfrontier.plan.disk import read_cells
from kvfrontier.plan.project import Project
from kvfrontier.plan.revision import CHANGED, resolve
from kvfrontier.store.rows import read_table
from kvfrontier.store.schema import ROW

FEWEST_DIGITS = 4
_FINGERPRINT = re.compile(r"[0-9a-f]{4,32}")
SHOWN = 8


class NotFound(KVFrontierError):
    """No stored row, or more than one kind of them, is called so."""


@dataclass(frozen=True)
class Selection:
    """Rows of one side: at most one a cell. `meaning`: what was taken, in words; `notes`: what to know about it."""

    said: str
    kind: str  # fingerprint | commit | campaign
    meaning: str
    rows: pa.Table
    notes: tuple[str, ...] = ()


def results_folders(project: Project, campaign: str | None = None) -> list[Path]:
    """Every folder of results, or that of one campaign. Raises NotFound."""
    folders = [path for path in sorted(project.results.glob("*")) if is_results_folder(path)]
    if campaign is None:
        if not folders:
            raise NotFound(f"{project.results} holds no results yet: run a campaign first (`snakemake`).")
        return folders
    names = [folder.name for folder in folders]
    if campaign not in names:
        known = f"There are {', '.join(names)}." if names else "There are no results at all."
        raise NotFound(f"no results of a campaign '{campaign}' in {project.results}. {known}")
    return [project.campaign_dir(campaign)]


def is_results_folder(path: Path) -> bool:
    """Whether a folder is what a campaign leaves behind."""
    is_named = path.is_dir() and not path.name.startswith(".")
    return is_named and any((path / name).is_dir() for name in ("plan", "cells", "store"))


def select(project: Project, said: str, campaign: str | None = None) -> Selection:
    """The rows that `said` means, from all results or those of `campaign`. Raises NotFound with what could be meant."""
    name, at, revision = said.rpartition("@")
    if at:
        return _of_commit(project, said, revision, results_folders(project, name))
    folders = results_folders(project, campaign)
    if any(folder.name == said for folder in results_folders(project)):
        return _of_campaign(project.campaign_dir(said), said)
    rows = _read(folders)
    found = rows.filter(pc.starts_with(rows.column("fingerprint"), said.lower())) if _may_be_fingerprint(said) else None
    if found:
        if _git_rows(rows, said.lower()):
            raise NotFound(f"'{said}' begins both a fingerprint and a commit: give more digits.")
        return _of_fingerprint(said, found)
    if resolve(project.root, said):
        return _of_commit(project, said, said, folders, rows)
    hint = did_you_mean(said, [folder.name for folder in folders])
    raise NotFound(
        f"'{said}' is no campaign with results, no fingerprint and no commit{_in(folders)}. {hint} "
        f'Fingerprints: `kvfrontier query "SELECT fingerprint, * FROM history"`; at least {FEWEST_DIGITS} digits.'
    )


def find_rows(project: Project, prefix: str, campaign: str | None = None) -> pa.Table:
    """Newest attempt at the one fingerprint that begins so, a row for each campaign that has it. Raises NotFound."""
    folders = results_folders(project, campaign)
    if not _may_be_fingerprint(prefix):
        raise NotFound(f"'{prefix}' is no fingerprint: {FEWEST_DIGITS} to 32 hexadecimal digits, as in `history`.")
    rows = _read(folders, prefix.lower())
    if not len(rows):
        raise NotFound(f"no stored row has a fingerprint that begins with '{prefix}'{_in(folders)}.")
    return _of_fingerprint(prefix, rows, one_a_cell=False).rows


def _may_be_fingerprint(text: str) -> bool:
    return bool(_FINGERPRINT.fullmatch(text.lower()))


def _read(folders: Sequence[Path], prefix: str = "") -> pa.Table:
    """Newest attempts at every fingerprint that begins with `prefix`, with the column `campaign`."""
    tables = []
    for folder in folders:
        rows, _ = read_table(folder)
        rows = newest(rows.filter(pc.starts_with(rows.column("fingerprint"), prefix)), "fingerprint", "attempt")
        tables.append(rows.append_column("campaign", pa.array([folder.name] * len(rows), pa.string())))
    return pa.concat_tables([ROW.append(pa.field("campaign", pa.string())).empty_table(), *tables])


def newest(rows: pa.Table, key: str, order: str) -> pa.Table:
    """The row with the highest `order` of each `key`; of equals the later one."""
    numbered = rows.select([key, order]).append_column("row", pa.array(range(len(rows)), pa.int64()))
    ordered = numbered.sort_by([(order, "ascending"), ("row", "ascending")])
    kept = ordered.group_by(key, use_threads=False).aggregate([("row", "last")]).column("row_last")
    return rows.take(kept.combine_chunks().sort())


def _of_campaign(folder: Path, said: str) -> Selection:
    rows = _read([folder])
    planned = read_cells(folder).column("fingerprint")
    current = rows.filter(pc.is_in(rows.column("fingerprint"), planned.combine_chunks()))
    if not len(current):
        raise NotFound(f"campaign {said} has no row of a current version: run it, or give {said}@COMMIT.")
    return Selection(said, "campaign", f"campaign {said}, current rows", current)


def _of_fingerprint(said: str, rows: pa.Table, one_a_cell: bool = True) -> Selection:
    names = sorted(set(rows.column("fingerprint").to_pylist()))
    if len(names) > 1:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise NotFound(
            f"'{said}' begins {len(names)} fingerprints: {', '.join(names[:SHOWN])}{more}. Give more digits."
        )
    chosen = newest(rows, "cell_id", "started_at") if one_a_cell else rows
    where = ", ".join(sorted(set(rows.column("campaign").to_pylist())))
    return Selection(said, "fingerprint", f"fingerprint {names[0]} (campaign {where})", chosen)


def _of_commit(
    project: Project, said: str, revision: str, folders: Sequence[Path], rows: pa.Table | None = None
) -> Selection:
    commit = resolve(project.root, revision)
    rows = _read(folders) if rows is None else rows
    found = _git_rows(rows, commit) if commit else None
    if not found:
        known = "" if commit else "git knows no such commit. "
        seen = _commits(rows)
        have = f"Rows are of {', '.join(seen[:SHOWN])}" if seen else "No row says of which commit it is"
        raise NotFound(f"no row was measured at commit '{revision}'{_in(folders)}. {known}{have}.")
    chosen = newest(found, "cell_id", "started_at")
    notes = []
    local = sum(text.endswith(CHANGED) for text in _git_of(chosen))
    if local:
        notes.append(f"{local} of {len(chosen)} rows of {said} were measured with local changes on top of the commit")
    if len(found) > len(chosen):
        notes.append(f"{said}: of cells with several rows at that commit the newest counts ({len(found)} rows)")
    where = ", ".join(sorted(set(chosen.column("campaign").to_pylist())))
    return Selection(said, "commit", f"commit {commit[:12]} (campaign {where})", chosen, tuple(notes))


def _git_of(rows: pa.Table) -> list[str]:
    looked_up = pc.map_lookup(rows.column("provenance"), pa.scalar("git_revision"), "first")
    return [text or "" for text in looked_up.to_pylist()]


def _git_rows(rows: pa.Table, commit: str) -> pa.Table:
    return rows.filter(pa.array([text.startswith(commit) for text in _git_of(rows)], pa.bool_()))


def _commits(rows: pa.Table) -> list[str]:
    return list(dict.fromkeys(text[:12] for text in reversed(_git_of(rows)) if text))


def _in(folders: Sequence[Path]) -> str:
    names = ", ".join(folder.name for folder in folders[:SHOWN])
    return f" in the results of {names}{' and others' if len(folders) > SHOWN else ''}"
