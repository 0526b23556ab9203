"""Starting and stopping: settings, the lock, signals, answers in flight."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kproxy.protocol.api_keys import ApiKey
from tests.forked import run_kproxy
from tests.harness import ROOT, Served, eventually, free_port, served
from tests.wire import Wire, batch, fetch_values, produce_values


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--no-such-flag"], {}, "--no-such-flag"),
        (["--listen", "nonsense"], {}, "HOST:PORT"),
        (["--sync", "sometimes"], {}, "always, never or interval:MS"),
        (["--segment-bytes", "many"], {}, "--segment-bytes many"),
        (["--segment-bytes", "5GiB"], {}, "--segment-bytes 5GiB"),
        (["--listen", "0.0.0.0:9092"], {}, "--advertise HOST:PORT"),
        ([], {"KPROXY_NO_SUCH": "1"}, "KPROXY_NO_SUCH"),
        ([], {"KPROXY_CONNECTIONS_MAX": "-4"}, "--connections-max -4"),
        (["--config", "/nowhere.toml"], {}, "/nowhere.toml"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_2(
    arguments: list[str], env: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = run_kproxy("serve", "--data-dir", str(tmp_path / "d"), *arguments, env=env)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr
    assert not (tmp_path / "d").exists()


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('lissten = "127.0.0.1:0"\n')
    done = run_kproxy("serve", "--config", str(file))
    assert done.returncode == 2
    assert "lissten" in done.stderr


def test_make_run_takes_settings_from_the_environment(tmp_path: Path) -> None:
    port = free_port()
    env = {
        **os.environ,
        "KPROXY_LISTEN": f"127.0.0.1:{port}",
        "KPROXY_DATA_DIR": str(tmp_path / "d"),
    }
    make = subprocess.Popen(
        ["make", "-s", "-o", ".venv/.run", "run"], cwd=ROOT, env=env, start_new_session=True
    )
    try:
        wire = eventually(lambda: _connected(port), 30)
        with wire:
            assert wire.call(ApiKey.API_VERSIONS, 0, {}).error_code == 0
        assert (tmp_path / "d" / "meta.json").exists()
    finally:
        os.killpg(make.pid, signal.SIGTERM)
        make.wait(30)


def _connected(port: int) -> Wire | None:
    try:
        return Wire("127.0.0.1", port)
    except ConnectionRefusedError:
        return None


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('sync = "never"\npartitions_default = 2\nbatch_bytes_max = "2MiB"\n')
    env = {"KPROXY_PARTITIONS_DEFAULT": "3", "KPROXY_AUTO_CREATE": "true"}
    with served(tmp_path / "d", "--config", str(file), "--partitions-default", "4", env=env) as s:
        ready = s.event("ready")
        assert ready
        assert ready["sync"] == "never"
        with Wire(s.host, s.port) as wire:
            assert len(wire.metadata("q").topics[0].partitions) == 4
    with served(tmp_path / "d", "--config", str(file), env=env) as s:
        with Wire(s.host, s.port) as wire:
            assert len(wire.metadata("r").topics[0].partitions) == 3


def test_advertised_address_and_identity_survive_a_restart(data_dir: Path) -> None:
    seen = set()
    for _ in range(2):
        with served(data_dir, "--advertise", "kproxy.example:1234", by_exec=True) as server:
            with Wire(server.host, server.port) as wire:
                answer = wire.metadata("q")
                assert [(b.host, b.port) for b in answer.brokers] == [("kproxy.example", 1234)]
                seen.add((answer.cluster_id, answer.topics[0].topic_id))
    assert len(seen) == 1


def test_a_second_process_on_the_same_data_is_refused(data_dir: Path) -> None:
    with served(data_dir):
        done = run_kproxy("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))
        assert done.returncode == 1
        assert "another kproxy is using" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_one_line(data_dir: Path, tmp_path: Path) -> None:
    with served(data_dir) as server:
        other = str(tmp_path / "other")
        done = run_kproxy("serve", "--listen", server.address, "--data-dir", other)
        assert done.returncode == 1
        assert done.stderr.strip().splitlines()[-1].startswith("kproxy: cannot listen on")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_what_is_in_flight(data_dir: Path, number: signal.Signals) -> None:
    server = Served(data_dir, by_exec=True).wait_ready()
    with Wire(server.host, server.port) as wire, Wire(server.host, server.port) as poll:
        wire.produce("q", batch(b"first"))
        waiting = poll.send(ApiKey.FETCH, 12, fetch_values({("q", 0): 1}, wait_ms=20_000))
        time.sleep(0.2)
        sent = [
            wire.send(ApiKey.PRODUCE, 9, produce_values("q", batch(b"%d" % i))) for i in range(50)
        ]
        time.sleep(0.2)
        server.process.send_signal(number)
        assert [wire.receive(0, 9)[0] for _ in sent] == sent
        assert poll.receive(1, 12)[0] == waiting
        assert wire.closed()
    assert server.process.wait(60) == 0
    assert server.stop() == 0
    assert server.event("stopped")
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        assert not again.event("log_recovered"), "a clean stop leaves nothing to recover"
        assert wire.fetch("q", 0).high_watermark == 51


def test_a_signal_has_the_counters_logged(data_dir: Path) -> None:
    with served(data_dir) as server, Wire(server.host, server.port) as wire:
        wire.produce("q", batch(b"first"))
        server.process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: server.event("counters"), 10)["requests"] >= 1
        wire.produce("q", batch(b"it goes on"))


def test_stop_under_load_loses_nothing_acknowledged(data_dir: Path) -> None:
    server = Served(data_dir).wait_ready()
    acknowledged = 0

    def write() -> None:
        nonlocal acknowledged
        try:
            with Wire(server.host, server.port) as wire:
                while True:
                    answer = wire.produce("q", batch(b"v"))
                    if answer.error_code:
                        return
                    acknowledged += 1
        except OSError:
            return

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.5)
    assert server.stop() == 0
    thread.join()
    with served(data_dir) as again, Wire(again.host, again.port) as wire:
        assert wire.fetch("q", 0).high_watermark >= acknowledged > 0
