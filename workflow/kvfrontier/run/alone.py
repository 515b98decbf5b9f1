"""One cell in a process of its own: `python -m kvfrontier.run.alone FOLDER` runs FOLDER/cell.json into FOLDER/row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvfrontier.plan.cell import Cell
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.run.worker import EngineWorker, Task

TASK = "cell.json"


def write_task(folder: Path, planned: PlannedCell) -> None:
    """Say what to run."""
    names = ("cell_id", "fingerprint", "task", "source")
    task = {name: getattr(planned, name) for name in names}
    task |= {"cell": planned.cell.as_dict(), "context": dict(planned.context)}
    (folder / TASK).write_text(json.dumps(task), encoding="utf-8")


def main(folder: Path) -> None:
    """Run the cell as an engine worker of a campaign does."""
    task = json.loads((folder / TASK).read_text(encoding="utf-8"))
    planned = PlannedCell(**{**task, "cell": Cell.from_dict(task["cell"])}, parameters={})
    report = EngineWorker(Project.find(), folder / "row", "alone").run(Task(planned, 1), 1)
    if report.fatal:
        sys.exit(report.fatal)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
