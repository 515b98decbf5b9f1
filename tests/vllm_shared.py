"""What vLLM is asked in its environment, and the engine torch in ours."""

from __future__ import annotations

from typing import Any

from kvfrontier.sources.text import exact_prompts

MODEL = "smollm2-135m"
MARK = "fact: "
"""In front of a line of JSON: libraries write to the same output."""
ROWS, OUTPUT_TOKENS = 20, 16
LENGTHS = (24, 40, 64, 90, 130)
CHATS = {"chats": 2, "turns": 3, "system_tokens": 80, "message_tokens": 20, "output_tokens": 6}
ARRIVALS = {"requests": 5, "request_rate": 3.0, "context_tokens": 40, "output_tokens": 6, "repeats": 1}
TIGHT = {"num_gpu_blocks_override": 12, "max_model_len": 256, "max_num_seqs": 16}
STEPS = {"max_num_seqs": 8, "max_num_batched_tokens": 256}
NO_CHUNKS = {"enable_chunked_prefill": False}
WHOLE = {**STEPS, **NO_CHUNKS, "max_model_len": 256}
STARTS = (
    {"max_num_seqs": 2048}, {"max_num_seqs": 256, "max_num_batched_tokens": 256}, {"max_num_batched_tokens": 64},
    WHOLE, {**NO_CHUNKS, "max_num_batched_tokens": 8192}, {**NO_CHUNKS, "max_num_seqs": 8192},
    {**NO_CHUNKS, "max_num_seqs": 4096, "max_model_len": 4096},
    {**NO_CHUNKS, "max_num_seqs": 2048, "max_model_len": 64},
)  # fmt: skip
DOES_NOT_START = (
    {"max_num_seqs": 2049}, {"max_num_seqs": 257, "max_num_batched_tokens": 256}, {**WHOLE, "max_model_len": 257},
    {**NO_CHUNKS, "max_num_batched_tokens": 8191}, {**NO_CHUNKS, "max_num_seqs": 8193},
    {**NO_CHUNKS, "max_num_seqs": 4097, "max_model_len": 4096},
    {**NO_CHUNKS, "max_num_seqs": 2049, "max_model_len": 64},
)  # fmt: skip
"""Settings of steps on either side of what vLLM takes, of a model that reads 8192 tokens."""


def same_prompts(tokenizer: Any) -> list[list[int]]:
    """20 natural texts of 24 to 130 tokens."""
    texts = exact_prompts(tokenizer, "natural", ROWS, max(LENGTHS), seed=0)
    return [text[: LENGTHS[row % len(LENGTHS)]] for row, text in enumerate(texts)]
