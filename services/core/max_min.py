"""Max-min fair division of whole things: nobody gets more while somebody who wants gets less."""

from __future__ import annotations

from collections.abc import Mapping


def max_min_shares(wants: Mapping[str, int], room: int, held: Mapping[str, int]) -> dict[str, int]:
    """What each gets of `room`: at most what it wants, in all at most the room.

    What cannot be divided equally goes to those who hold more already, then by name: so the division does not
    move by itself.
    """
    left, level = max(0, room), 0
    order = sorted(wants.values())
    for index, want in enumerate(order):
        others = len(order) - index
        if (want - level) * others > left:
            level += left // others
            left %= others
            break
        left -= (want - level) * others
        level = want
    shares = {name: min(want, level) for name, want in wants.items()}
    for name in sorted(wants, key=lambda name: (-held.get(name, 0), name)):
        if left > 0 and shares[name] < wants[name]:
            shares[name] += 1
            left -= 1
    return shares
