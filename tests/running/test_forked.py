"""A forked kproxy is what a started one is: a child, with files, signals and randomness its own."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.forked import AS_INSTALLED, KPROXY, Forked, _zygote, fork_in, run_kproxy
from tests.harness import Served, stand_still
from tests.wire import Wire


def is_forked(process: "subprocess.Popen[str]") -> bool:
    return "tests.zygote" in psutil.Process(process.pid).cmdline()


def test_served_process_is_a_child_that_signals_end(data_dir: Path) -> None:
    server = Served(data_dir).wait_ready()
    try:
        assert is_forked(server.process)
        assert psutil.Process(server.process.pid).ppid() == os.getpid()
        stand_still(server.process)
        server.process.send_signal(signal.SIGCONT)
        with Wire(server.host, server.port) as wire:
            assert wire.metadata("q").topics[0].error_code == 0
    finally:
        server.kill()
    assert server.process.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(server.process.pid)
    assert Served(data_dir).wait_ready().stop() == 0


def test_zygote_has_one_thread_and_no_files_but_its_own() -> None:
    assert run_kproxy("--version").returncode == 0
    zygote = psutil.Process(_zygote().process.pid)
    assert zygote.num_threads() == 1
    assert zygote.num_fds() == 4
    assert not zygote.children()


def test_forked_servers_hold_no_files_of_others(data_dir: Path, tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w"):
        one, other = Served(data_dir).wait_ready(), Served(tmp_path / "other").wait_ready()
        try:
            held = [file.path for file in psutil.Process(other.process.pid).open_files()]
            assert held
            assert all(path.startswith(str(tmp_path / "other")) for path in held), held
        finally:
            one.kill()
            other.kill()


def test_forked_servers_do_not_draw_the_same_ids(tmp_path: Path) -> None:
    seen = set()
    for name in ("a", "b"):
        server = Served(tmp_path / name).wait_ready()
        with Wire(server.host, server.port) as wire:
            answer = wire.metadata("q")
            seen |= {answer.cluster_id, answer.topics[0].topic_id}
        server.kill()
    assert len(seen) == 4


def test_commands_have_their_own_input_output_and_status(tmp_path: Path) -> None:
    done = run_kproxy("queues", "--bootstrap-server", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kproxy: nothing serves at 127.0.0.1:1")
    refused = run_kproxy("serve", "--data-dir", tmp_path, env={"KPROXY_SESSION_MS": "1"})
    assert refused.returncode == 2
    assert "--session-ms" in refused.stderr


@pytest.mark.parametrize("changed", ["LD_PRELOAD", "PYTHONPATH", "MALLOC_ARENA_MAX"])
def test_another_interpreter_is_started_by_exec(changed: str) -> None:
    env = os.environ | AS_INSTALLED | {changed: ""}
    with Forked([*KPROXY, "--version"], env=env, text=True, stdout=subprocess.PIPE) as process:
        assert not is_forked(process)
        assert process.communicate(timeout=60)[0].startswith("kproxy, version")


def test_another_interpreter_is_forked_where_that_is_asked_for() -> None:
    env = os.environ | AS_INSTALLED | {"MALLOC_ARENA_MAX": "2"}
    zygote = fork_in(env)
    with Forked([*KPROXY, "--version"], env=env, text=True, stdout=subprocess.PIPE) as process:
        assert is_forked(process)
    assert zygote is fork_in(env) is not _zygote()
