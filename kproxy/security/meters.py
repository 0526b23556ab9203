"""Meters of the last seconds, held against a limit.

They count as Kafka's sensors do (`SampledStat`, `Rate`, `TokenBucket`): eleven samples of a second
each. A rate is taken over ten seconds at least, so that a client may have ten seconds' worth at
once. Times are seconds of one monotonic clock, and arguments.
"""

SAMPLES = 11
SAMPLE_S = 1.0
WINDOW_S = (SAMPLES - 1) * SAMPLE_S
_KEPT_S = SAMPLES * SAMPLE_S


class Rate:
    """An average rate per second."""

    __slots__ = ("_samples", "limit", "until", "used_at")

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.used_at = self.until = now  # there is to be no more before `until`
        self._samples: list[list[float]] = []  # when begun, when last added to, how much

    def record(self, amount: float, now: float) -> float:
        """Count it. Returns for how many seconds there is to be no more: 0 within the limit."""
        self.used_at = now
        total = self.total(now)
        samples = self._samples
        if not samples or now - samples[-1][0] >= SAMPLE_S:
            samples.append([now, now, amount])
        else:
            samples[-1][1] = now
            samples[-1][2] += amount
        elapsed = now - samples[0][0]
        window = elapsed + max(0, SAMPLES - 1 - int(elapsed / SAMPLE_S)) * SAMPLE_S
        return max(0.0, (total + amount) / self.limit - window)

    def take_back(self, amount: float) -> None:
        """Take back the last record: it did not happen."""
        self._samples[-1][2] -= amount

    def total(self, now: float) -> float:
        """Return the total of the samples that count."""
        samples = self._samples
        while samples and now - samples[0][1] >= _KEPT_S:
            del samples[0]
        return sum(sample[2] for sample in samples)

    def empty(self, now: float) -> bool:
        """Whether a new one would say the same."""
        return self.total(now) <= 0


class Bucket:
    """A rate per second of pieces of any size: eleven seconds' worth at once."""

    __slots__ = ("_at", "_tokens", "limit", "until", "used_at")

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.used_at = self._at = self.until = now
        self._tokens = self._most

    @property
    def _most(self) -> float:
        return SAMPLES * SAMPLE_S * self.limit

    def _refill(self, now: float) -> None:
        self._tokens = min(self._most, self._tokens + (now - self._at) * self.limit)
        self._at = now

    def left(self, now: float) -> int:
        """Return how much there may be at once."""
        self._refill(now)
        return max(0, int(self._tokens))

    def wait(self, now: float) -> float:
        """Return the seconds for which there is to be no more: 0 within the limit."""
        self._refill(now)
        return max(0.0, -self._tokens / self.limit)

    def record(self, amount: float, now: float) -> float:
        """Count it, be it too much; returns as `wait` does."""
        self.used_at = now
        self._refill(now)
        self._tokens -= amount
        return max(0.0, -self._tokens / self.limit)

    def empty(self, now: float) -> bool:
        """Whether a new one would say the same."""
        self._refill(now)
        return self._tokens >= self._most
