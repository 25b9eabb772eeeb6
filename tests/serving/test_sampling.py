"""Drawing tokens: by chance as the temperature says, and the same again for the same seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from allranks.serving.sampling import ROWS, Sampling, likeliest, noise  # noqa: E402

pytestmark = pytest.mark.torch


def draw(logits: list[float], rows: list[dict[str, Any]], positions: list[int]) -> list[int]:
    sampling = Sampling(steady=False)
    states = [
        SimpleNamespace(logit_processor_kwargs=row, position_offset=at) for row, at in zip(rows, positions, strict=True)
    ]
    waiting = [SimpleNamespace(has_new_token=True, state=state) for state in states]
    storage = torch.zeros(ROWS, len(rows), dtype=torch.int32)
    sampling.prepare_tensor_args(waiting, storage)
    scores = torch.tensor([logits] * len(rows))
    tokens: list[int] = sampling(torch.empty(0), scores, storage).argmax(dim=-1).tolist()
    return tokens


def test_draws_come_as_often_as_the_softmax_says() -> None:
    logits = [2.0, 1.0, 0.0, -1.0]
    count = 20_000
    drawn = draw(logits, [{"temperature": 0.7, "seed": 5}] * count, list(range(count)))
    wanted = torch.softmax(torch.tensor(logits) / 0.7, 0) * count
    found = torch.bincount(torch.tensor(drawn), minlength=4).float()
    chi = float(((found - wanted) ** 2 / wanted).sum())
    assert chi < 16.3, (found.tolist(), wanted.tolist())  # one in a thousand, for three degrees of freedom


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    flat, rows = [0.0] * 1000, list(range(50))
    one = draw(flat, [{"temperature": 1.0, "seed": 1}] * 50, rows)
    assert draw(flat, [{"temperature": 1.0, "seed": 1}] * 50, rows) == one
    other = draw(flat, [{"temperature": 1.0, "seed": 2}] * 50, rows)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 5
    assert len(set(one)) > 40


def test_a_row_is_drawn_alike_whatever_stands_beside_it() -> None:
    row: dict[str, Any] = {"temperature": 1.0, "seed": 3}
    alone = draw([0.0] * 100, [row], [7])
    assert draw([0.0] * 100, [{"temperature": 0.0}, row, {"temperature": 2.0, "seed": 9}], [1, 7, 2])[1] == alone[0]


def test_temperature_zero_takes_the_likeliest_beside_rows_that_draw() -> None:
    assert draw([0.0, 3.0, 1.0], [{"temperature": 0.0}, {"temperature": 2.0, "seed": 1}], [0, 0])[0] == 1


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 4))
    kept = likeliest(scores, torch.tensor([0, 2, 0, 3]), torch.tensor([1.0, 1.0, 0.7, 0.1])).isfinite()
    assert kept.sum(dim=-1).tolist() == [4, 2, 2, 1]


def test_noise_is_finite_everywhere() -> None:
    many = noise(torch.arange(64), torch.arange(64), 50_000)
    assert bool(many.isfinite().all())
    assert abs(float(many.mean()) - 0.5772) < 0.01


@pytest.mark.parametrize("given", [{"top_k": 2**31}, {"temperature": float("nan")}, {"top_k": 1.0}, {"beams": 3}])
def test_what_would_end_the_loop_for_all_is_refused_for_the_one(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="; allowed"):
        Sampling(steady=False).check_kwargs(given)
