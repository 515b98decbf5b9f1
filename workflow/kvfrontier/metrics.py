"""Every metric: name, unit, direction, one line of meaning.

Adding one is a constant here and a `yield` where it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Metric:
    """`kind`: `value` (mean, t-interval over repeats, requests or items) or `proportion` (0/1 items, Wilson interval).

    `role`: a `quality` metric is set against each `cost` metric in the frontiers; KV bytes are always a cost.
    `nature`: how a value behaves when the same work is done again. `exact`: the same (counts, tensor bytes).
    `computed`: the same but for rounding (what a model says). `noisy`: another one each time (times, peaks of a
    process), which is what a metric of a new unit is taken for.
    """

    name: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    meaning: str
    kind: Literal["value", "proportion"] = "value"
    role: Literal["", "quality", "cost"] = ""
    nature: Literal["exact", "computed", "noisy"] = "noisy"


class Measurement(NamedTuple):
    """One raw value; `phase`, `repeat`, `request`, `turn`, `layer`, `head` say where it was taken (None: not given)."""

    metric: str
    value: float
    phase: str = ""
    repeat: int | None = None
    request: int | None = None
    turn: int | None = None
    layer: int | None = None
    head: int | None = None


METRICS: dict[str, Metric] = {}
NATURES = {"B": "exact", "tokens": "exact", "share": "computed", "nat": "computed"}
"""By unit, unless a metric says otherwise."""


def _metric(
    name: str, unit: str, better: str, meaning: str, kind: str = "value", role: str = "", nature: str = ""
) -> str:
    METRICS[name] = Metric(name, unit, better, meaning, kind, role, nature or NATURES.get(unit, "noisy"))
    return name


TTFT_S = _metric("ttft_s", "s", "lower", "Submission (or arrival) of a request to its first output token", role="cost")
TPOT_S = _metric("tpot_s", "s", "lower", "Mean time per output token after the first, per request", role="cost")
E2E_LATENCY_S = _metric("e2e_latency_s", "s", "lower", "Submission of the batch to its last output token")
PREFILL_S = _metric("prefill_s", "s", "lower", "Time of the prefill of the whole batch")
DECODE_S = _metric("decode_s", "s", "lower", "First to last output token of the batch")
OUTPUT_TOKENS_PER_S = _metric(
    "output_tokens_per_s", "tokens/s", "higher", "Output tokens of the batch (or of all requests) / end-to-end time",
    role="cost",
)  # fmt: skip
DECODE_TOKENS_PER_S = _metric(
    "decode_tokens_per_s", "tokens/s", "higher", "Output tokens after the first / decode time", role="cost"
)
OUTPUT_TOKENS_PER_S_PER_GB = _metric(
    "output_tokens_per_s_per_gb", "tokens/s/GB", "higher",
    "output_tokens_per_s / peak KV bytes in GB (10^9), all tiers", role="cost",
)  # fmt: skip
REQUEST_LATENCY_S = _metric(
    "request_latency_s", "s", "lower", "Arrival of a request to its last output token", role="cost"
)
QUEUE_S = _metric("queue_s", "s", "lower", "Arrival of a request to the beginning of the step that first reads it")
REQUESTS_PER_S = _metric(
    "requests_per_s", "requests/s", "higher", "Requests answered / time from first arrival to last output token",
    role="cost",
)  # fmt: skip
GOODPUT_REQUESTS_PER_S = _metric(
    "goodput_requests_per_s", "requests/s", "higher", "As requests_per_s, of requests within both latency limits alone",
    role="cost",
)  # fmt: skip
WITHIN_LIMITS = _metric(  # no proportion: requests of one queue are late together, a repeat is one observation
    "within_limits", "share", "higher", "A request was answered within the limits of its TTFT and its TPOT",
    nature="noisy",
)  # fmt: skip
OFFERED_REQUESTS_PER_S = _metric(
    "offered_requests_per_s", "requests/s", "neither", "Rate at which requests really came, as drawn or traced",
    nature="exact",
)  # fmt: skip
OUTPUT_TOKENS = _metric("output_tokens", "tokens", "neither", "Output tokens actually produced per request")
CONTEXT_TOKENS = _metric("context_tokens", "tokens", "neither", "Prompt tokens actually given per request")

KV_DEVICE_BYTES = _metric("kv_device_bytes", "B", "lower", "Bytes of kept keys and values on the compute device")
KV_HOST_BYTES = _metric("kv_host_bytes", "B", "lower", "Bytes of keys and values held in host memory for fetching")
KV_DISK_BYTES = _metric("kv_disk_bytes", "B", "lower", "Bytes of keys and values held in a file for fetching")
KV_AUX_BYTES = _metric("kv_aux_bytes", "B", "lower", "Bytes a strategy keeps beside keys and values: scores, positions")
KV_RESERVED_BYTES = _metric(
    "kv_reserved_bytes", "B", "lower", "Bytes allocated for keys and values in all tiers, used or not"
)
KV_FORMULA_BYTES = _metric("kv_formula_bytes", "B", "neither", "Bytes the strategy's own formula predicts to keep")
KV_FULL_BYTES = _metric("kv_full_bytes", "B", "neither", "Bytes a full cache of the same tokens would keep")
FETCHED_BYTES = _metric(
    "fetched_bytes", "B", "lower", "Bytes copied from a slower memory in a prefill, or in a decode step on average"
)
STORED_BYTES = _metric(
    "stored_bytes", "B", "lower", "Bytes copied to a slower memory in a prefill, or in a decode step on average"
)
KV_MASKED_BYTES = _metric("kv_masked_bytes", "B", "lower", "Bytes of held keys and values that attention has to skip")
KV_WASTE_BYTES = _metric("kv_waste_bytes", "B", "lower", "Bytes of blocks in use that hold no token, by rounding up")
KV_PEAK_BLOCKS = _metric(
    "kv_peak_blocks", "blocks", "lower", "Most blocks of a paged cache in use in one step", nature="exact"
)
KV_TYPE_AGREEMENT = _metric(
    "kv_type_agreement", "share", "higher", "Greedy tokens of a probe that a cache of another type leaves as they were"
)
PREEMPTIONS = _metric(
    "preemptions", "count", "lower", "Times that a running request lost its blocks and was read again", nature="exact"
)
PREFIX_HIT_RATE = _metric(
    "prefix_hit_rate", "share", "higher", "Prompt tokens found in a cache of earlier ones / all prompt tokens"
)
FOUND_TOKENS = _metric("found_tokens", "tokens", "higher", "Prompt tokens of a request that were found in a cache")
READ_TOKENS = _metric("read_tokens", "tokens", "lower", "Prompt tokens of a request that were not found, but read")
PROCESS_PEAK_BYTES = _metric(
    "process_peak_bytes", "B", "lower", "Peak resident memory of the worker in that phase", nature="noisy"
)
ALLOCATOR_PEAK_BYTES = _metric(
    "allocator_peak_bytes", "B", "lower", "Peak of the device allocator in that phase", nature="noisy"
)
DEVICE_USED_BYTES = _metric(
    "device_used_bytes", "B", "lower", "Memory in use on the whole device after that phase", nature="noisy"
)

CONTEXT_FITS = _metric(
    "context_fits", "share", "higher", "A prompt of the phase's length ran within the memory limit", nature="noisy"
)
LONGEST_CONTEXT_TOKENS = _metric(
    "longest_context_tokens", "tokens", "higher", "Longest prompt tried that fits the memory limit", nature="noisy"
)
BOUNDARY_FOUND = _metric(
    "boundary_found", "share", "neither", "1: a longer prompt did not fit; 0: the longest that is tried does"
)

KEPT_TOKENS = _metric("kept_tokens", "tokens", "lower", "Tokens kept by one layer's KV head, mean over the batch")
ACHIEVED_BUDGET = _metric(
    "achieved_budget", "share", "lower", "Kept tokens / tokens seen, mean over layers and heads", nature="exact"
)

KEPT_AGE_SHARE = _metric(
    "kept_age_share",
    "share",
    "neither",
    "Share of a layer's kept tokens in a tenth of the ages (newest - position) / tokens seen; phase: where it begins",
)

FETCHED_TOKENS = _metric(
    "fetched_tokens", "tokens", "lower", "Tokens a decode step chose from another memory, by layer and KV head, mean"
)
FETCH_REUSE = _metric(
    "fetch_reuse", "share", "higher", "Chosen tokens that lay on the device from the step before, by layer"
)
FETCH_DEVICE_BYTES = _metric(
    "fetch_device_bytes", "B", "lower", "Most bytes that fetched tokens of two layers took on the device, one sequence"
)

KL_DIVERGENCE = _metric(
    "kl_divergence", "nat", "lower", "KL(full cache || strategy) of next-token distributions", role="quality"
)
TOP1_AGREEMENT = _metric(
    "top1_agreement", "share", "higher", "Next-token argmax equals the full cache's", kind="proportion", role="quality"
)
NLL = _metric("nll", "nat", "lower", "Negative log-likelihood of the true next token under the strategy")

ACC = _metric(
    "acc", "share", "higher", "lm-eval's accuracy: the right answer has the largest log-likelihood",
    kind="proportion", role="quality",
)  # fmt: skip
ACC_NORM = _metric(
    "acc_norm", "share", "higher", "lm-eval's acc_norm: as acc, log-likelihoods divided by an answer's characters",
    kind="proportion", role="quality",
)  # fmt: skip
EXACT_MATCH = _metric(
    "exact_match", "share", "higher", "lm-eval's exact_match of a generated answer, by the task's first filter",
    kind="proportion", role="quality",
)  # fmt: skip
TASK_SCORE = _metric(
    "task_score", "score", "neither", "Any other score that an lm-eval task gives a document; phase: name, filter",
    nature="computed",
)  # fmt: skip
STANDARD_ERROR = _metric("standard_error", "share", "lower", "lm-eval's standard error of the score named by the phase")
LOG_LIKELIHOOD = _metric("log_likelihood", "nat", "neither", "Of each possible answer (turn) of a document (request)")
ANSWER_MARGIN = _metric(
    "answer_margin", "nat", "higher", "Log-likelihood of the right answer minus that of the best wrong one",
    role="quality",
)  # fmt: skip
FULL_AGREEMENT = _metric(
    "full_agreement", "share", "higher", "acc's answer (not acc_norm's), or the generated text, is the full cache's",
    kind="proportion", role="quality",
)  # fmt: skip
MARGIN_CHANGE = _metric(
    "margin_change", "nat", "higher", "answer_margin (of sums, as acc) minus the full cache's of the same document"
)
EVICTED_TOKENS = _metric(
    "evicted_tokens", "tokens", "neither", "Tokens of a context that were gone when its question was asked, mean"
)
EFFECTIVE_BUDGET = _metric(
    "effective_budget", "share", "neither", "Tokens still held when a context's question was asked / all of its tokens"
)
BUDGET_BITES = _metric(
    "budget_bites", "share", "neither", "A context lost a token; 0: too short for the budget to change anything",
    kind="proportion", nature="exact",
)  # fmt: skip
GUESS_ACCURACY = _metric(
    "guess_accuracy", "share", "neither", "acc of a random guess: right choices / choices of a document, mean",
    nature="exact",
)  # fmt: skip
MAJORITY_ACCURACY = _metric(
    "majority_accuracy", "share", "neither", "Share of the documents whose right choice is at the most frequent place",
    nature="exact",
)  # fmt: skip

RETENTION_CORRECT = _metric(
    "retention_correct", "share", "higher", "Forced choice names the fact among the alternatives",
    kind="proportion", role="quality",
)  # fmt: skip
RETENTION_MARGIN = _metric(
    "retention_margin", "nat", "higher", "Log-probability of the fact minus that of the best alternative",
    role="quality",
)  # fmt: skip
RETENTION_CONTAINED = _metric(
    "retention_contained", "share", "higher", "Free-text answer contains the fact", kind="proportion", role="quality"
)
SECOND_QUESTION_CORRECT = _metric(
    "second_question_correct", "share", "higher",
    "A fact answered right after another one was asked for on the same cache", kind="proportion",
)  # fmt: skip
SECOND_QUESTION_MARGIN = _metric(
    "second_question_margin", "nat", "higher", "As retention_margin, after another fact was asked for on the same cache"
)
FACT_SURVIVAL = _metric("fact_survival", "share", "higher", "Share of the fact's tokens in the kept set")
CONTROL_NO_CONTEXT = _metric(
    "control_no_context", "share", "neither", "Answered right with the question alone: chance", kind="proportion"
)
CONTROL_RECENT_ONLY = _metric(
    "control_recent_only", "share", "neither", "Forced choice correct from the last tokens alone", kind="proportion"
)
