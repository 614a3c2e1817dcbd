"""Dependency order: everything comes after what it needs, nothing waits longer, and cycles are found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.cloudformation.graph import Walk, find_cycle, reverse

NAMES = [f"N{number}" for number in range(6)]


@st.composite
def acyclic(draw):
    """Draw dependencies that only point backwards, listed in any order."""
    pairs = draw(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=12))
    order = draw(st.permutations(NAMES))
    return {name: {need for who, need in pairs if who == name and need < name} for name in order}


def walked(dependencies):
    """Return the batches of names that the walk yields."""
    walk, batches = Walk(dependencies), []
    while batch := walk.ready():
        batches.append(batch)
        for name in batch:
            walk.done(name)
    return batches


@settings(max_examples=30, deadline=None)
@given(acyclic())
def test_every_name_goes_once_and_after_what_it_needs_and_nothing_waits_that_could_go(dependencies):
    done: set[str] = set()
    for batch in walked(dependencies):
        assert {name for name in dependencies if name not in done and dependencies[name] <= done} == set(batch)
        done |= set(batch)
    assert sorted(done) == NAMES
    order = [name for batch in walked(reverse(dependencies)) for name in batch]
    assert all(order.index(name) < order.index(need) for name in order for need in dependencies[name])


@settings(max_examples=30, deadline=None)
@given(acyclic(), st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
def test_exactly_the_cycle_is_named(dependencies, circle):
    assert find_cycle(dependencies) == []
    tied = {name: set(needs) for name, needs in dependencies.items()}
    for name, need in zip(circle, circle[1:] + circle[:1], strict=True):
        tied[name] = {need}
    found = find_cycle(tied)
    assert set(circle) <= set(found)
    assert all(tied[name] & set(found) for name in found)
