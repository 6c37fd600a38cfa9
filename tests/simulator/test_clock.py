"""Virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.clock import VirtualClock


@given(st.lists(st.integers(0, 50), max_size=20))
def test_things_happen_in_order_of_time_then_of_asking(delays: list[int]) -> None:
    """What is due earlier happens earlier; what is due at once happens in the order in which it was asked for."""
    clock, happened = VirtualClock(1_000), []
    for number, delay in enumerate(delays):
        clock.after(delay, lambda delay=delay, number=number: happened.append((delay, number, clock.now)))
    while clock.step(2_000):
        pass
    assert [(delay, number) for delay, number, _ in happened] == sorted((d, n) for n, d in enumerate(delays))
    assert all(now == 1_000 + delay for delay, _, now in happened)


def test_the_clock_stands_at_the_limit_when_nothing_happens_before_it() -> None:
    """A step without anything to do moves the clock to its limit, and never back."""
    clock = VirtualClock(1_000)
    clock.after(500, lambda: None)
    assert not clock.step(1_200)
    assert clock.now == 1_200
    assert not clock.step(1_100)
    assert clock.now == 1_200
    assert clock.step(2_000)
    assert clock.now == 1_500
