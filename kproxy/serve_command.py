"""`kproxy serve`. Its options come from `Config`."""

from pathlib import Path
from typing import Any

import click

from kproxy.tools.config_options import GroupedCommand, config_file, loaded, settings


@click.command(name="serve", cls=GroupedCommand)
@settings()
@config_file
@click.option("--supervised", is_flag=True, hidden=True)
def serve_command(config_file: Path | None, supervised: bool, **flags: Any) -> None:
    """Serve queues to Kafka clients until stopped.

    Every setting may also be given as KPROXY_… in the environment (KPROXY_DATA_DIR) or in the
    file; flags win over the environment, and that over the file.
    """
    from kproxy.serving import run  # it imports the server: `kproxy serve --help` needs none

    run(None if supervised else loaded(config_file, flags))
