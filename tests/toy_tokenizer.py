"""A tokenizer made in memory: one token a byte, a chat template like ChatML. For tests with tiny models."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def toy_tokenizer(template: str | None = TEMPLATE, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """258 ids (and one more a merge); `template=None`: a base model without chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate([*letters, *(a + b for a, b in merges)])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[1], chat_template=template)
