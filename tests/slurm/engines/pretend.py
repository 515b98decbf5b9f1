"""torch on the CPU, whatever GPU the campaign declares: a real model on the test cluster's fake GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfrontier.engines import engine
from kvfrontier.engines.torch import Torch

if TYPE_CHECKING:
    from kvfrontier.engines._torch_session import TorchSession
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model


@engine("pretend")
class Pretend(Torch):
    """Loads without asking what the device is."""

    def load(self, model: Model, device: Device) -> TorchSession:
        from kvfrontier.plan.device import Device as Declared

        return super().load(model, Declared(device.name, "cpu"))
