"""Plugins by file name: what a half-written one says."""

import pytest
from kvfrontier import strategies
from kvfrontier.errors import KVFrontierError
from kvfrontier.registry import STRATEGIES


@pytest.fixture
def written(tmp_path):
    """Writes a strategy's file beside the shipped ones."""
    strategies.__path__.append(str(tmp_path))
    yield lambda name, text: (tmp_path / f"{name}.py").write_text(text)
    strategies.__path__.remove(str(tmp_path))


def test_a_syntax_error_in_a_plugin_is_named_with_its_line(written):
    written("half_done", "x = 1\nclass HalfDone(\n")
    with pytest.raises(KVFrontierError, match=r"strategy half_done cannot be read: .*half_done\.py:2: "):
        STRATEGIES.get("half_done")


def test_a_file_that_registers_nothing_is_named(written):
    written("empty_file", "")
    with pytest.raises(KVFrontierError, match="must register a strategy called 'empty_file'"):
        STRATEGIES.get("empty_file")
