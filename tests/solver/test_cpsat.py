"""The CP-SAT model says of quota what the tree says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import add, request

from solver.cpsat import _profile, _scale, limits
from solver.decode import decode
from solver.quota import UNLIMITED
from solver.slots import Held, Slots, compact, hold


@st.composite
def slot_trees(draw: st.DrawFn) -> Slots:
    """Up to five slots in any forest: no more sets than are written out."""
    up = [draw(st.integers(-1, k - 1)) for k in range(draw(st.integers(1, 5)))]
    inner = [above >= 0 for above in up]
    local = [draw(st.sampled_from([0, 0, 1, 2, 3])) if below else 0 for below in inner]
    cap = [draw(st.sampled_from([1, 2, 4, UNLIMITED])) if below else draw(st.integers(0, 6)) for below in inner]
    most = np.array(cap, dtype=np.int64)
    return Slots(
        np.array(up, dtype=np.int32), np.array(local, dtype=np.int64), most, most, np.zeros(len(up), dtype=np.int32)
    )


@settings(deadline=None)
@given(slot_trees(), st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_sets_of_slots_are_the_tree(slots, amounts):
    """Use is within every set's limit exactly when no slot of the tree is above what it may use."""
    use = np.zeros(len(slots.up), dtype=np.int64)
    for slot in range(len(slots.up)):
        hold(slots, use, slot, amounts[slot])
    within = all((np.maximum(0, use - slots.local) <= slots.cap).tolist())
    assert within == all(sum(amounts[slot] for slot in chosen) <= most for chosen, most in limits(slots))


def test_too_many_sets():
    """With many children that keep quota private only the whole is limited: what is shared and all that is private."""
    asked = request({f"q{k}": 2 for k in range(12)}, cohort="all")
    for queue in asked.quota.cluster_queues:
        queue.resource_groups[0].flavors[0].resources[0].lending_limit = 1
    add(asked, 2, 10, times=30)
    slots = compact(decode(asked)).slots
    assert [most for chosen, most in limits(slots) if len(chosen) > 1] == [24]


def test_what_is_held_never_overfills():
    """Use over time is a step function, cut at the capacity and where the model ends."""
    held = Held(*(np.array(column) for column in ([0, 0, 1, 0], [3, 2, 9, 1], [0, 5, 0, 20], [10, 8, 9, 30])))
    assert _profile(held, frozenset({0}), 4, 20) == [(0, 5, 3), (5, 8, 4), (8, 10, 3)]


def test_the_scale_of_weights_is_finite():
    """However small weights are, the whole numbers made of them are finite; whole weights stay as they are."""
    for weight in ([5e-324], [1e-310, 5e-324], [0.0, 5e-324], [0.5, 1e12]):
        scaled = np.array(weight) * _scale(np.array(weight))
        assert np.isfinite(scaled).all()
    assert _scale(np.array([0.0, 3.0])) == 1.0
