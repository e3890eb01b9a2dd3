"""Plain numbers that come back from a file: each is checked, and times are put on our clock.

Pure: whoever reads the file says what time it is and how far the two clocks are apart.
"""

from __future__ import annotations

import math

# Nothing that was saved holds a host up for longer, whatever stands in the file.
LONGEST_S = 86_400.0

Plain = dict[str, object]
"""What a part exports: texts to numbers, truth values, or the same of a smaller part."""


class Saved:
    """What one part exported, on its way back.

    ``now`` is monotonic seconds, ``offset_s`` what has to be added to such a time to get Unix
    seconds. Every method raises ``ValueError`` that names the key for what cannot have been saved.
    """

    __slots__ = ("_values", "now", "offset_s")

    def __init__(self, values: object, *, now: float, offset_s: float) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{values!r:.50} is not an object")
        self._values: Plain = values
        self.now = now
        self.offset_s = offset_s

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def part(self, name: str) -> Saved:
        """A smaller part; an empty one if there is none."""
        return Saved(self._values.get(name, {}), now=self.now, offset_s=self.offset_s)

    def seconds(self, name: str) -> float:
        """A duration, at most a day; 0 if there is none."""
        seconds = self._number(name, 0.0)
        if seconds < 0:
            raise ValueError(f"{name} is negative: {seconds!r}")
        return min(seconds, LONGEST_S)

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """A whole number, ``least`` or more; ``default`` if there is none."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is not a whole number from {least} on: {value!r:.50}")
        return value

    def flag(self, name: str) -> bool:
        """A truth value; ``False`` if there is none."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false: {value!r:.50}")
        return value

    def past(self, name: str) -> float:
        """When something happened, monotonic seconds: now at the latest, ``-inf`` if never."""
        return min(self._time(name), self.now)

    def deadline(self, name: str) -> float:
        """Until when something holds, monotonic seconds: a day at most, ``-inf`` if it does not."""
        return min(self._time(name), self.now + LONGEST_S)

    def _time(self, name: str) -> float:
        return self._number(name, -math.inf) - self.offset_s

    def _number(self, name: str, default: float) -> float:
        if name not in self._values:
            return default
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} is not a number: {value!r:.50}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ValueError(f"{name} is not a finite number: {value!r:.50}")
        return number
