"""kafka-streams-groups and kafka-groups show, reset and delete the group of an application."""

from pathlib import Path

from tests.clients.calls import create
from tests.frameworks.test_streams import application, counted, lag, named, write
from tests.harness import eventually, java
from tests.workers import Site

TOOLS = "org.apache.kafka.tools."


def tool(site: Site, *arguments: str, name: str = "streams.StreamsGroupCommand") -> str:
    """Return what the tool says, its columns one space apart."""
    said = java(TOOLS + name, "--bootstrap-server", site.address, *arguments)
    return "\n".join(" ".join(line.split()) for line in said.splitlines())


def test_a_group_is_shown_reset_and_deleted_by_kafkas_tools(site: Site, tmp_path: Path) -> None:
    name, spoken = named(site, "shown", "streams")
    create(site.address, f"{name}-in", partitions=2)
    create(site.address, f"{name}-out", partitions=2)
    written = write(site, f"{name}-in", 0, 100)
    group, described = ("--group", name), ("--describe", "--group", name)
    with application(site, name, tmp_path, spoken) as running:
        running.running()
        eventually(lambda: counted(running) == written, 60)
        eventually(lambda: lag(site, name) == 0, 30)
        assert f"{name} Streams streams" in tool(site, "--list", name="GroupsCommand")
        assert f"{name} Stable" in tool(site, "--list", "--state")
        lags = tool(site, *described).splitlines()
        assert {f"{name} {name}-in {part} 0" for part in range(2)} <= set(lags)
        assert {f"{name} {name}-counts-repartition {part} 0" for part in range(2)} <= set(lags)
        members = tool(site, *described, "--members", "--verbose")
        assert "ACTIVE: 0:[0,1]; 1:[0,1]; TARGET-ACTIVE: 0:[0,1]; 1:[0,1];" in members
        assert " is not EMPTY" in tool(site, "--delete", *group)
        running.stop()
    assert " Empty 0" in tool(site, *described, "--state")
    topic = ("--input-topic", f"{name}-in")
    reset = tool(site, "--reset-offsets", *group, *topic, "--to-earliest", "--execute")
    assert f"{name} {name}-in 1 0" in reset
    assert f"{name}-in 1 Successful" in tool(site, "--delete-offsets", *group, *topic)
    assert "was successful" in tool(site, "--delete", *group)
    assert name not in tool(site, "--list")
