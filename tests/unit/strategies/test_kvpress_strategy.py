"""The strategy kvpress without kvpress: how a press is written, how much it is told to keep, and where it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kvfrontier.engines.kvpress import KVPressEngine
from kvfrontier.engines.torch import Torch
from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies import _press, kvpress
from pydantic import ValidationError

KVPress = STRATEGIES.get("kvpress")
SPEC = ModelSpec("any")
NESTED = "AdaKVPress(alpha_safeguard=0.1, press=SnapKVPress(window_size=64))"
KNOWN = {
    "SnapKVPress": {"parameters": {"compression_ratio": False, "window_size": False}, "takes_ratio": True},
    "AdaKVPress": {"parameters": {"press": True, "alpha_safeguard": False}, "takes_ratio": True},
    "ChunkKVPress": {"parameters": {"press": True, "chunk_length": False}, "takes_ratio": True, "chunk_length": 20},
    "ThinKPress": {"parameters": {"key_channel_compression_ratio": False}, "takes_ratio": False},
}


@pytest.fixture
def known(monkeypatch):
    """As if the environment were made."""
    for module in (_press, kvpress):
        monkeypatch.setattr(module, "presses", lambda: KNOWN)


@pytest.fixture(autouse=True)
def unknown(request, monkeypatch):
    """As if it were not, whatever this machine has."""
    if "known" not in request.fixturenames:
        for module in (_press, kvpress):
            monkeypatch.setattr(module, "presses", dict)


@pytest.mark.parametrize(
    "given",
    [
        NESTED,
        " AdaKVPress(press=SnapKVPress(window_size = 64),alpha_safeguard=1e-1) ",
        {"name": "AdaKVPress", "press": {"name": "SnapKVPress", "window_size": 64}, "alpha_safeguard": 0.1},
        {"name": "AdaKVPress", "press": "SnapKVPress(window_size=64)", "alpha_safeguard": 0.1},
    ],
)
def test_a_press_has_one_form_however_it_is_written(given):
    assert KVPress(press=given).press == NESTED


def test_lists_words_and_numbers_come_back_as_they_were():
    given = {
        "name": "XPress",
        "presses": ["APress", {"name": "BPress"}],
        "a": None,
        "b": True,
        "c": "text",
        "d": [1, 2.5],
    }
    made = []

    class Module:
        def __getattr__(self, name):
            return lambda **parameters: made.append((name, parameters)) or name

    text = KVPress(press=given, budget=None).press
    assert text == "XPress(a=None, b=True, c='text', d=[1, 2.5], presses=[APress, BPress])"
    assert KVPress(press=text, budget=None).press == text
    assert KVPress(press=text, budget=None).make(Module(), 10) == "XPress"
    assert made[-1] == ("XPress", {"a": None, "b": True, "c": "text", "d": [1, 2.5], "presses": ["APress", "BPress"]})


@pytest.mark.parametrize(
    "given",
    ["", "Snap KVPress", "SnapKVPress(64)", "SnapKVPress(w=9**9)", "SnapKVPress(w=open('f'))", "a.b", "f(", "(" * 300,
     7, {"window_size": 64}, {"name": "XPress", "p": {"q": 1}}, "__import__('os').system('true')", "X(**{'a': 1})"],
)  # fmt: skip
def test_what_is_no_press_is_refused_and_never_run(given):
    with pytest.raises(ValidationError, match="the name of a press of kvpress, or a mapping"):
        KVPress(press=given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"press": "SnapKVPres"}, "there is no 'SnapKVPres'. Did you mean 'SnapKVPress'?"),
        ({"press": "SnapKVPress(windowsize=1)"}, "not 'windowsize'. Did you mean 'window_size'?"),
        ({"press": "AdaKVPress(press=SnapPress)"}, "there is no 'SnapPress'. Did you mean 'SnapKVPress'?"),
        ({"press": "AdaKVPress"}, "AdaKVPress with press, without which it cannot be"),
        ({"press": "ThinKPress", "budget": 0.5}, "budget: null with ThinKPress"),
        ({"press": "AdaKVPress(press=SnapKVPress(compression_ratio=0.5))"}, "budget instead of compression_ratio"),
    ],
)
def test_mistakes_are_told_where_kvpress_is_known(known, given, words):
    with pytest.raises(ValidationError) as told:
        KVPress(**given)
    assert words in str(told.value)


def test_a_budget_becomes_a_ratio_that_keeps_so_many(known):
    for tokens in range(1, 300):
        for count in (2, 3, 17, tokens - 1, tokens, tokens + 5):
            if count > 1:
                strategy = KVPress(budget=count)
                assert int(tokens * (1 - strategy.ratio(tokens))) == min(count, tokens)
                assert strategy.kept_tokens(tokens, 2) == min(count + 1, tokens) + 2
        for budget in (0.07, 0.2, 0.3, 0.5, 0.99):
            strategy = KVPress(budget=budget)
            exact = max(1, int(tokens * (1 - strategy.ratio(tokens))))
            assert exact <= strategy.kept_tokens(tokens) <= min(tokens, exact + 2)
    assert KVPress(budget=1.0).ratio(100) == 0.0 and KVPress(budget=1.0).kept_tokens(100, 7) == 107
    assert KVPress(press="ThinKPress", budget=None).ratio(100) is None
    assert KVPress(press="ThinKPress", budget=None).kept_tokens(100) == 100
    chunks = KVPress(press="ChunkKVPress(press=SnapKVPress)", budget=0.5)
    assert chunks.kept_tokens(64) == 43, "a last chunk of 4 counts as one of 20: 40 of 64 may stay, and no more than 43"


def test_the_ratio_reaches_the_press():
    def press(**parameters):
        return SimpleNamespace(**parameters)

    made = KVPress(press="SnapKVPress(window_size=8)", budget=0.25).make(SimpleNamespace(SnapKVPress=press), 40)
    assert (made.window_size, made.compression_ratio) == (8, 0.75)
    none = KVPress(press="SnapKVPress", budget=None).make(SimpleNamespace(SnapKVPress=press), 40)
    assert not hasattr(none, "compression_ratio")


def test_each_engine_runs_its_own():
    full, ours, theirs = (STRATEGIES.get(name)() for name in ("full", "streaming_llm", "kvpress"))
    for strategy in (full, theirs):
        KVPressEngine().check(strategy, SPEC)
    for engine, strategy, words in (
        (KVPressEngine(), ours, "'streaming_llm' runs on 'torch'"),
        (Torch(), theirs, "does not deliver kvpress, which 'kvpress' requires"),
    ):
        with pytest.raises(Unsupported, match=words):
            engine.check(strategy, SPEC)
