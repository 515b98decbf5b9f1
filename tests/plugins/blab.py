"""A workload for tests of what is kept: its error quotes every secret it finds, as a careless library would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvfrontier.metrics import TTFT_S, Measurement
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.strategies.base import Strategy


@workload("blab")
class Blab(Workload):
    """`fails`: whether it ends with the error, or prints it only."""

    fails: bool = True

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        yield Measurement(TTFT_S, 1.0)
        names = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN")
        said = " ".join(os.environ.get(name, "") for name in names)
        if self.fails:
            url = f"https://me:{os.environ['KVFRONTIER_TEST_LOGIN']}@hub.example/x"
            raise ValueError(f"401 Client Error for {url}: headers {said}")
