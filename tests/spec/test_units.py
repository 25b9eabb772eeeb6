from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allranks.spec.units import LONGEST, MOST, Duration, Quantity

durations = st.integers(0, LONGEST).map(Duration)
quantities = st.builds(Quantity, st.integers(0, MOST), st.sampled_from(["decimal", "binary", "exponent"]))


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("90s", 90, "1m30s"),
        ("10m", 600, "10m"),
        ("1h30m", 5400, "1h30m"),
        ("24h", 86400, "24h"),
        ("7d", 604800, "168h"),
        ("500ms", 0.5, "500ms"),
        ("1m500ms", 60.5, "1m500ms"),
        ("0s", 0, "0s"),
    ],
)
def test_a_duration_converts_to_seconds_and_prints_in_its_largest_units(
    text: str, seconds: float, canonical: str
) -> None:
    assert Duration.parse(text).seconds == seconds
    assert str(Duration.parse(text)) == canonical


@pytest.mark.parametrize("value", ["10", 10])
def test_a_duration_without_a_unit_is_told_to_write_seconds(value: object) -> None:
    with pytest.raises(ValueError, match="a duration needs its unit: write 10s"):
        Duration.of(value)


@pytest.mark.parametrize(
    "text", ["", "s", "1.5h", "-1s", "1s1m", "1h 30m", "1m1m", "1S", "\u0661s", "10m\n", "1" * 10 + "s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed is a duration such as 90s"):
        Duration.parse(text)


def test_a_duration_beyond_ten_years_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 87600h"):
        Duration.parse("4000d")


@given(durations, durations)
def test_durations_compare_by_length_and_survive_printing(one: Duration, other: Duration) -> None:
    assert Duration.parse(str(one)) == one
    assert (one < other) == (one.milliseconds < other.milliseconds)


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("8", "8", "8"),
        ("0", "0", "0"),
        ("500m", "0.5", "500m"),
        ("0.5", "0.5", "500m"),
        ("1.", "1", "1"),
        ("16Gi", "17179869184", "16Gi"),
        ("1.5Gi", "1610612736", "1536Mi"),
        ("1024Mi", "1073741824", "1Gi"),
        ("0.1Ki", "102.4", "102400m"),
        ("1757.8125Ki", "1800000", "1800k"),
        ("1e3", "1000", "1e3"),
        ("12E2", "1200", "1200"),
        ("5e-3", "0.005", "5e-3"),
        ("2000k", "2000000", "2M"),
        ("1n", "1E-9", "1n"),
        ("8E", "8E18", "8E"),
    ],
)
def test_a_quantity_has_an_exact_value_and_prints_without_a_fraction(text: str, value: str, canonical: str) -> None:
    assert Quantity.parse(text).value == Decimal(value)
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1", "+1", "1 Gi", "1GB", "1gi", "1Gie3", "1e", "1e100", ".5", "0x10", "1_000"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed is a quantity such as 8"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.1n", "no finer than 1n"),
        ("1e-12", "no finer than 1n"),
        ("9e18k", "allowed"),
        ("1e19", "at most"),
        ("8Ei", "at most"),
    ],
)
def test_a_quantity_that_kubernetes_would_round_or_cap_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Quantity.parse(text)


def test_a_quantity_rounds_up_to_its_base_unit() -> None:
    assert int(Quantity.parse("1500m")) == 2
    assert float(Quantity.parse("1500m")) == 1.5
    assert not Quantity.parse("0")


def test_quantities_are_equal_by_amount_whatever_their_unit() -> None:
    assert Quantity.parse("1024Mi") == Quantity.parse("1Gi")
    assert hash(Quantity.parse("1000m")) == hash(Quantity.parse("1"))
    assert Quantity.parse("1G") < Quantity.parse("1Gi")


@given(quantities)
@example(Quantity(1_800_000 * 10**9, "binary"))
def test_a_quantity_survives_printing_and_prints_the_same_again(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)
    assert 0 <= int(again) - again.value < 1
