"""Linear layers that multiply few rows from the other side: the same values, and where they are used."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.models import few_rows
from kvfrontier.models.few_rows import MOST_ENTRIES, FewRows, speed_up_few_rows
from torch import nn

WIDE = MOST_ENTRIES + 1


@pytest.fixture(autouse=True)
def as_with_mkl(monkeypatch):
    """The values hold in any build."""
    monkeypatch.setattr(few_rows.torch.backends.mkl, "is_available", lambda: True)


def both(in_features: int, bias: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, nn.Linear]:
    """A plain layer, and the same one turned."""
    torch.manual_seed(in_features)
    plain = nn.Linear(in_features, 70, bias=bias, dtype=dtype)
    turned = nn.Sequential(nn.Linear(in_features, 70, bias=bias, dtype=dtype))
    turned[0].load_state_dict(plain.state_dict())
    speed_up_few_rows(turned)
    return plain, turned[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("in_features", [16, 576, 1536, WIDE])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 1), (2, 1), (1, 3), (3, 1), (2, 2), (8, 1), (3, 3), (2, 40)])
@torch.no_grad()
def test_the_values_are_those_of_a_plain_layer_whatever_the_rows(in_features, bias, shape):
    plain, turned = both(in_features, bias)
    x = torch.randn(*shape, in_features)
    told = turned(x)
    assert type(turned) is FewRows and told.is_contiguous() and told.shape == (*shape, 70)
    torch.testing.assert_close(told, plain(x), rtol=1e-5, atol=1e-5)
    strided = torch.randn(in_features, *shape).movedim(0, -1)
    torch.testing.assert_close(turned(strided), plain(strided), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_few_rows_are_multiplied_from_the_other_side_and_many_are_not(monkeypatch):
    plainly = []
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: plainly.append(len(x)) or x.new_zeros(len(x), 70))
    for in_features in (576, 1536, WIDE):
        layer = both(in_features, bias=False)[1]
        for rows in range(1, 11):
            layer(torch.zeros(rows, in_features))
    assert plainly == [9, 10, *range(4, 11), 1, *range(4, 11)]


def test_other_types_and_builds_without_that_library_keep_their_layers(monkeypatch):
    assert type(both(16, True, torch.bfloat16)[1]) is type(both(16, True, torch.float64)[1]) is nn.Linear
    monkeypatch.setattr(few_rows.torch.backends.mkl, "is_available", lambda: False)
    assert type(both(16, True)[1]) is nn.Linear


def test_a_layer_of_another_class_is_left_alone():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(4, 4), nn.Linear(4, 4))
    speed_up_few_rows(model)
    assert [type(layer) for layer in model] == [Own, FewRows]
