"""The largest batches: of the log, and of queues by their settings."""

from collections.abc import Collection, Mapping

from kproxy.common.errors import Code, KafkaError
from kproxy.config.server import Config
from kproxy.metadata.delay_settings import FIXED, MODE
from kproxy.metadata.queue_settings import SIZE, QueueSettings, settings_of
from kproxy.metadata.routing import read_configs
from kproxy.metadata.setting import Setting
from kproxy.routes.cutting import SHIP_FRAME_BYTES
from kproxy.virtual.folds.route_definitions import CONFIGS


def largest_batch(config: Config) -> tuple[int, str]:
    """Return the largest batch that the log takes, in bytes, and the flag that bounds it.

    A queue's settings do not change it.
    """
    most = config.log_bytes_max
    if config.bootstrap_servers is None:
        return most, "--frame-bytes-max"
    return most - min(SHIP_FRAME_BYTES, most // 2), "--data-message-bytes-max"


class BatchLimits:
    """The largest batch that each queue takes."""

    def __init__(self, config: Config, delayed_most: int) -> None:
        """Take `delayed_most`, the bytes of a batch's records that wait until they are due."""
        self._default = config.batch_bytes_max
        self._most, self._flag = largest_batch(config)
        self._delayed_most = delayed_most

    def of(self, settings: QueueSettings) -> int:
        """Return the largest batch, in bytes, that a queue with these settings takes."""
        size = settings.demands.bytes_max
        if size is None:
            size = self._default
        return size if size <= self._most else self._most

    def check(self, values: Mapping[str, str], given: Collection[str]) -> None:
        """Raise KafkaError (INVALID_CONFIG): a queue's settings ask for more than is kept here.

        `given`: the names of those that are set now. One that was set before stays.
        """
        made = dict(read_configs(values[CONFIGS])) if values.get(CONFIGS) else {}
        for settings, new in ((values, given), (made, made if CONFIGS in given else ())):
            if SIZE in settings and not {SIZE, FIXED, MODE}.isdisjoint(new):
                self._check_size(settings)

    def _check_size(self, values: Mapping[str, str]) -> None:
        settings, most, flag = settings_of(values), self._most, self._flag
        if settings.delay is not None and self._delayed_most < most:
            most, flag = self._delayed_most, "--data-message-bytes-max"
        if (size := settings.demands.bytes_max or 0) > most:
            what = f"{SIZE}={size} is above {most}, the most that {flag} of this kproxy allows"
            raise KafkaError(Code.INVALID_CONFIG, what)

    def default(self, setting: Setting) -> str:
        """Return the value that queues have that do not set it."""
        if setting.name == SIZE:
            return str(min(self._default, self._most))
        return setting.default
