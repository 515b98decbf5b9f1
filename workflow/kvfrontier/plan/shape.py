"""The shape of every config document: keys, bounds, defaults, descriptions. The JSON schemas come from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvfrontier.parameters import Count, PositiveInt

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
COMMIT_PATTERN = r"^[0-9a-f]{40}$"
HUB_PATTERN = r"^\w[\w.-]*(/\w[\w.-]*)?$"
REQUIREMENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*$"
GPU_MODEL_PATTERN = r"^[A-Za-z0-9_.]+$"
PATTERNS_IN_WORDS = {
    NAME_PATTERN: "at most 100 letters, digits, . _ - that start with a letter or a digit",
    SHA256_PATTERN: "64 hex digits in small letters",
    COMMIT_PATTERN: "the 40 hex digits of a commit, because a branch lets weights change under results",
    HUB_PATTERN: "`organisation/name`, as the hub has it",
    REQUIREMENT_PATTERN: "`distribution==version`",
    GPU_MODEL_PATTERN: "letters, digits, _ and . alone; where the cluster's name for it has others use `constraint`",
}

Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN, description="SHA-256 of the file, 64 hex digits")]


class Shape(BaseModel):
    """A mapping that refuses unknown keys, NaN and infinities."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ShardShape(Shape):
    max_cells: Annotated[PositiveInt, Field(description="Cells a shard (one Snakemake job) holds at most")] = 500
    workers: Annotated[
        PositiveInt | None,
        Field(description="Engine processes at once in one job. Default: as many as its cores, memory and GPUs hold"),
    ] = None
    nodes: Annotated[PositiveInt, Field(description="Nodes of one Slurm job, with one Ray cluster over them")] = 1


class ConstraintShape(Shape):
    """One rule over cells: either `drop` or `require`, each a mapping of paths to a value, a list or operators."""

    drop: Annotated[dict[str, Any] | None, Field(description="Cells that match all of these paths are left out")] = None
    require: Annotated[
        dict[str, Any] | None, Field(description="Cells that have one of these paths and do not match it are left out")
    ] = None
    when: Annotated[
        dict[str, Any] | None, Field(description="The rule holds only for cells that match all of these")
    ] = None

    @model_validator(mode="after")
    def _one_rule(self) -> ConstraintShape:
        if bool(self.drop) == bool(self.require):
            raise ValueError("exactly one of `drop: {path: value}` and `require: {path: value}`, not empty")
        return self


class CampaignShape(Shape):
    """What to measure: axes, constraints, repeats."""

    name: Annotated[
        str | None,
        Field(
            pattern=NAME_PATTERN,
            description="Names the results folder: letters, digits, . _ -. Default: the file's name",
        ),
    ] = None
    description: Annotated[str, Field(description="One line for people")] = ""
    device: Annotated[str | None, Field(description="A name in config/devices.yaml; or give an axis `device`")] = None
    repeats: Annotated[
        PositiveInt | None, Field(description="Timed repeats in each cell: short for the axis `workload.repeats`")
    ] = None
    axes: Annotated[
        dict[str, Any], Field(description="Dotted paths and their values; the grid is their product", min_length=1)
    ]
    zip: Annotated[
        list[dict[str, list[Any]]], Field(description="Groups of axes that advance together instead of multiplying")
    ] = []
    constraints: Annotated[list[ConstraintShape], Field(description="Which cells of the product to leave out")] = []
    against: Annotated[
        list[str | dict[str, Any]],
        Field(description="Strategies that the others are compared with, item by item, in the report. Default: full"),
    ] = []
    shard: ShardShape = ShardShape()
    timeout_s: Annotated[float, Field(gt=0, description="Seconds a cell may run before it becomes a row `timeout`")] = (
        600.0
    )
    max_attempts: Annotated[int, Field(ge=1, le=10, description="Attempts before an error or a timeout is final")] = 2


class FingerprintShape(Shape):
    ignore: Annotated[
        list[str],
        Field(description="Parts that do not make a stored measurement stale, such as `package:ray` or `package:*`"),
    ] = []


class ConfigShape(Shape):
    """Settings of the checkout, not of a campaign."""

    campaign: Annotated[str, Field(description="The campaign that runs when none is named")] = "default"
    results: Annotated[str, Field(description="Where results go; relative to the checkout")] = "results"
    fingerprint: FingerprintShape = FingerprintShape()


class ModelShapeShape(Shape):
    """Shape of a decoder model, as in its config.json."""

    layers: PositiveInt
    q_heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    hidden: PositiveInt
    vocab: PositiveInt
    max_positions: Annotated[PositiveInt, Field(description="Longest context in tokens")]
    parameters: Annotated[PositiveInt | None, Field(description="Number of weights; for the cost model")] = None
    value_head_dim: Annotated[PositiveInt | None, Field(description="Of the values, where keys have another")] = None
    window_tokens: Annotated[
        int | None, Field(ge=3, description="Tokens that a query sees in layers with a sliding window")
    ] = None
    full_layers: Annotated[
        tuple[Count, ...] | None, Field(description="Beside window_tokens: numbers (from 0) of layers without a window")
    ] = None

    def spec_fields(self) -> dict[str, Any]:
        """The fields of ModelSpec. One that is new here and not given is left out: it must not rename older models."""
        fields = self.model_dump(exclude={"window_tokens", "full_layers"})
        if self.value_head_dim is None:
            del fields["value_head_dim"]
        if self.window_tokens is not None:
            full = set(self.full_layers or ())
            fields["windows"] = tuple(None if layer in full else self.window_tokens for layer in range(self.layers))
        return fields

    @model_validator(mode="after")
    def _layers_exist(self) -> ModelShapeShape:
        last = max(self.full_layers or (), default=0)
        if self.full_layers is not None and (self.window_tokens is None or last >= self.layers):
            raise ValueError(f"full_layers below {self.layers}, beside window_tokens")
        return self

    @model_validator(mode="after")
    def _whole_groups(self) -> ModelShapeShape:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads that are a multiple of kv_heads, not {self.q_heads} and {self.kv_heads}")
        return self


class ModelShape(Shape):
    """One model: exactly one of `wheel`, `hub`, `folder`, or a `shape` alone (for the simulator)."""

    wheel: Annotated[str | None, Field(pattern=REQUIREMENT_PATTERN, description="`distribution==version` on PyPI")] = (
        None
    )
    sha256: Annotated[Sha256 | None, Field(description="Of the wheel")] = None
    member: Annotated[str | None, Field(description="Path of the GGUF file inside the wheel")] = None
    hub: Annotated[str | None, Field(pattern=HUB_PATTERN, description="Hub id `organisation/name`")] = None
    revision: Annotated[str | None, Field(pattern=COMMIT_PATTERN, description="Commit of the hub repository")] = None
    folder: Annotated[str | None, Field(description="Folder with config.json and *.safetensors")] = None
    trust_remote_code: Annotated[bool, Field(description="Run Python code that comes with the model")] = False
    shape: Annotated[
        ModelShapeShape | None, Field(description="Needed for wheels and shapes; checks contexts for hub ids")
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelShape:
        sources = [name for name in ("wheel", "hub", "folder") if getattr(self, name)]
        if len(sources) > 1 or not (sources or self.shape):
            raise ValueError("exactly one of `wheel`, `hub`, `folder`, or a `shape` alone")
        needed = {"wheel": ("sha256", "member", "shape"), "hub": ("revision",)}.get("".join(sources), ())
        missing = [key for key in needed if getattr(self, key) is None]
        if missing == ["revision"]:
            raise ValueError(f"also `revision`: {PATTERNS_IN_WORDS[COMMIT_PATTERN]}")
        if missing:
            raise ValueError(f"also {', '.join(f'`{key}`' for key in missing)} beside `{sources[0]}`")
        return self


class SlurmShape(Shape):
    """Where Slurm has nodes with this device. Makes nothing stale; goes before what the profile says for all jobs."""

    partition: Annotated[str | None, Field(min_length=1, description="sbatch -p")] = None
    constraint: Annotated[str | None, Field(min_length=1, description="sbatch -C: features of the nodes")] = None
    gpu_model: Annotated[
        str | None,
        Field(pattern=GPU_MODEL_PATTERN, description="sbatch --gpus=MODEL:N, as `scontrol show node` has it"),
    ] = None


class DeviceShape(Shape):
    """A device as campaigns declare it. Rates feed the cost model; the worker verifies kind and name."""

    kind: Literal["cpu", "cuda"]
    match: Annotated[str, Field(description="Text that the real device's name must contain")] = ""
    memory_bytes: Annotated[int | None, Field(gt=0)] = None
    memory_bytes_per_s: Annotated[float | None, Field(gt=0)] = None
    flops_per_s: Annotated[float | None, Field(gt=0, description="Dense, in the dtype that models run in")] = None
    link_bytes_per_s: Annotated[float | None, Field(gt=0, description="Device to host, one direction")] = None
    step_overhead_s: Annotated[float, Field(ge=0, description="Fixed cost of a decode step")] = 0.0
    slurm: SlurmShape = SlurmShape()


class DataShape(Shape):
    """A data source inside a PyPI wheel, or a `trace` of requests in a file."""

    requirement: Annotated[
        str | None, Field(pattern=REQUIREMENT_PATTERN, description="`distribution==version` on PyPI")
    ] = None
    sha256: Annotated[Sha256 | None, Field(description="Of the wheel")] = None
    size_bytes: Annotated[PositiveInt | None, Field(description="Size of the download")] = None
    trace: Annotated[
        str | None, Field(min_length=1, description="CSV of requests: arrival_s, context_tokens, output_tokens")
    ] = None
    licence: str = ""

    @model_validator(mode="after")
    def _one_source(self) -> DataShape:
        wheel = ("requirement", "sha256", "size_bytes")
        given = [key for key in wheel if getattr(self, key) is not None]
        if (self.trace is None) == (not given):
            raise ValueError("a `requirement` with `sha256` and `size_bytes`, or a `trace` alone")
        if given and len(given) < len(wheel):
            missing = (f"`{key}`" for key in wheel if key not in given)
            raise ValueError(f"also {', '.join(missing)}: a wheel is known by all three")
        return self
