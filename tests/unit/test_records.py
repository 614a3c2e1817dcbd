"""The agent's records behave like `dataclasses`, as far as its sources need."""

from __future__ import annotations

import dataclasses

import pytest

from phalanx.node import records


def made_with(module) -> tuple[type, type]:
    """Make the same classes with the decorator of either module."""

    @module.dataclass(frozen=True)
    class Inner:
        name: str
        size: int = 3

    @module.dataclass()
    class Outer:
        inner: Inner
        others: tuple[Inner, ...] = ()
        seen: set[str] = module.field(default_factory=set)

        @property
        def total(self) -> int:
            return self.inner.size + sum(other.size for other in self.others)

    return Inner, Outer


@pytest.mark.parametrize("module", [dataclasses, records])
def test_records_are_made_compared_changed_and_written(module):
    inner, outer = made_with(module)
    one = outer(inner("a"), others=(inner("b", 4),))
    assert (one.inner.name, one.inner.size, one.total) == ("a", 3, 7)
    assert one == outer(inner("a", 3), (inner(name="b", size=4),))
    assert one != module.replace(one, others=())
    assert module.replace(one, inner=inner("c")).inner == inner("c")
    one.seen.add("x")
    assert outer(inner("a")).seen == set()
    told = module.asdict(one)
    assert told | {"others": [*told["others"]]} == {
        "inner": {"name": "a", "size": 3},
        "others": [{"name": "b", "size": 4}],
        "seen": {"x"},
    }


@pytest.mark.parametrize("module", [dataclasses, records])
def test_a_record_may_be_empty(module):
    @module.dataclass(frozen=True)
    class Nothing:
        """A record without fields."""

    assert Nothing() == Nothing()


@pytest.mark.parametrize("module", [dataclasses, records])
def test_a_field_without_a_value_is_an_error(module):
    inner, _ = made_with(module)
    with pytest.raises((TypeError, KeyError)):
        inner(size=1)
