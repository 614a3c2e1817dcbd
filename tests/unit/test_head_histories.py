"""Whatever happens in whatever order, the head reaches the right state."""

from __future__ import annotations

from decisions import (
    TIMEOUT_S,
    group,
    hear,
    machine,
    policy,
    publish,
    state,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.node.decision import (
    Fail,
    Publish,
    State,
    decide,
)

Report = tuple[str, int]
REPORTS: list[Report] = [(kind, number) for kind in ("hello", "look") for number in (2, 3, 4)]
# Any of the nodes 2 to 9, drawn as one number: sets that are drawn element by element take three times as long.
NODES = st.integers(0, 255).map(lambda bits: {number + 2 for number in range(8) if bits >> number & 1})


@settings(max_examples=100, deadline=None)
@given(
    order=st.permutations(REPORTS),
    again=st.binary(max_size=6).map(lambda data: [REPORTS[byte % len(REPORTS)] for byte in data]),
    lost=st.integers(0, 7).map(lambda bits: {REPORTS[n] for n in range(3) if bits >> n & 1}),
)
def test_lost_late_and_repeated_messages_change_nothing(order, again, lost):
    """Messages arrive in any order, twice, or late, and the roster is the same in the end."""
    made, wish = State(machine(1), 0.0), policy()
    tries: list[Report] = [*(reported for reported in order if reported not in lost), *again, *sorted(lost), *again]
    for at, (kind, number) in enumerate(tries, 1):
        if kind == "hello":
            hear(made, number, at=float(at))
        else:
            made.group = group(2, 3, 4, at=float(at))
        if isinstance(decide(made, wish, float(at)), Publish):
            publish(made, wish, float(at))
    assert made.roster is not None and made.roster.generation == 1
    found = {n.instance_id: n.name for n in made.roster.nodes}
    assert found == {f"i-{n}": f"deeplearning-worker{n}" for n in (1, 2, 3, 4)}
    assert made.roster.missing == () and made.roster.revoked == ()


@settings(max_examples=150, deadline=None)
@given(
    answered=NODES,
    launched=NODES,
    failed=NODES,
    refusals=st.integers(0, 5),
    wanted=st.integers(1, 8),
    minimum=st.integers(1, 8),
    now=st.sampled_from([1.0, 40.0, 700.0]),
)
def test_every_beginning_ends(answered, launched, failed, refusals, wanted, minimum, now):
    """The head stays between the minimum and the request, gives missing nodes a reason, and never hangs."""
    wish = policy(wanted, min(minimum, wanted))
    made = state(*answered, at=3.0)
    made.group = group(*launched, refusals=refusals)
    made.failed = {f"i-{n}": f"boot failed on i-{n}" for n in failed}
    action = decide(made, wish, now)
    if isinstance(action, Publish):
        nodes = action.roster.nodes
        assert wish.minimum <= len(nodes) <= wish.nodes
        assert len(nodes) + len(action.roster.missing) == wish.nodes
        assert all(m.reason for m in action.roster.missing)
        assert not {n.instance_id for n in nodes} & (set(made.failed) | set(action.drop))
        assert [n.name for n in nodes] == [f"deeplearning-worker{i}" for i in range(1, len(nodes) + 1)]
    elif isinstance(action, Fail):
        assert f"at least {wish.minimum} are needed" in action.reason
        assert "no reason known" not in action.reason
    else:
        assert action is None and now <= TIMEOUT_S
