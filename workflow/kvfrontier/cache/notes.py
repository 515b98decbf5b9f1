"""What is known of a row's tokens: for strategies that keep tokens for what they say, not for who attends to them.

A strategy names the kinds it wants in `requires()`; a row's notes then hold one number a token, by position.

- `token_ids`: the ids.
- `words`: the number of the word that a token is part of; from the tokenizer's pieces.
- `numerals`: 1 where the piece has a digit.
- `surprisal`: -log p(token | all before) in nats; UNKNOWN for the first token of a prefill or an extension and for
  generated tokens. Known when a reading ends, not between chunks of one.
- `turns`: the number of the turn; -1 for what stands before the first (system prompt, the template's opening).
- `oracle_span`: 1 where the token spells what will be asked for: no policy can know it, a control may.

The engine makes the first four; the last two only the workload can tell, and one that cannot makes the cell
`unsupported` when the plan is made. Where nobody says anything (a question, generated tokens) a note is UNKNOWN.
"""

from __future__ import annotations

from math import inf

OF_ENGINE = frozenset({"token_ids", "words", "numerals", "surprisal"})
OF_WORKLOAD = frozenset({"turns", "oracle_span"})
UNKNOWN = -inf

RowNotes = dict[str, list[float]]
"""By kind, one number a token."""
