"""The Kubernetes files, held strictly against the API's schemas: each file, and what overlays make.

Go builds kustomize for the latter (long). Nothing here needs a cluster.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kproxy.config.server import load
from tests.harness import ROOT, need_program

DEPLOY = ROOT / "deploy" / "kubernetes"
KUSTOMIZE = Path(__file__).with_name("kustomize")
VERSIONS = ("1.29", "1.33")
OVERLAYS = {"embedded": 5, "kafka": 6}  # how many objects each makes


def documents(text: str) -> Iterator[dict[str, Any]]:
    yield from (one for one in yaml.safe_load_all(text) if one is not None)


def resources() -> list[Path]:
    return [path for path in sorted(DEPLOY.rglob("*.yaml")) if path.name != "kustomization.yaml"]


@pytest.mark.parametrize("path", resources(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_each_file_is_as_the_schema_says(path: Path) -> None:
    found = list(documents(path.read_text()))
    assert found
    for one in found:
        if path.name == "workers.yaml":  # a patch: what it lacks the base has
            one["spec"] |= {"selector": {}, "serviceName": "x"}
            one["spec"]["template"]["spec"]["containers"][0]["image"] = "x"
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def test_each_kustomization_names_files_that_are_there() -> None:
    for path in DEPLOY.rglob("kustomization.yaml"):
        (one,) = documents(path.read_text())
        named = [*one["resources"], *(patch["path"] for patch in one.get("patches", ()))]
        assert all((path.parent / name).exists() for name in named), path
        there = {file.name for file in path.parent.glob("*.yaml")} - {path.name}
        assert there <= set(named), path


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield (pod, container) of the base."""
    for one in documents((DEPLOY / "base" / "stateful-set.yaml").read_text()):
        pod = one["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield pod, container


def test_settings_are_settings_of_kproxy() -> None:
    for _, container in containers():
        environ = {one["name"]: one.get("value", "x") for one in container["env"]}
        environ["KPROXY_ADVERTISE"] = environ["KPROXY_ADVERTISE"].replace("$(POD_NAME)", "kproxy-0")
        config = load({}, None, environ)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert config.listen_address[1] == ports["kafka"]
        assert config.http_listen == f"0.0.0.0:{ports['http']}"
    (patch,) = documents((DEPLOY / "overlays" / "kafka" / "workers.yaml").read_text())
    (workers,) = patch["spec"]["template"]["spec"]["containers"]
    load({}, None, {one["name"]: one["value"] for one in workers["env"]})


def test_pods_are_restricted_and_have_time_to_stop() -> None:
    """As the Pod Security Standard `restricted` asks."""
    for pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        inner = container["securityContext"]
        assert not inner["allowPrivilegeEscalation"]
        assert inner["readOnlyRootFilesystem"]
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert not pod["enableServiceLinks"]  # KPROXY_PORT is no setting
        config = load({}, None, {})
        most_ms = config.drain_ms_max + config.shutdown_ms_max
        assert pod["terminationGracePeriodSeconds"] * 1000 > most_ms + 10_000
        probes = [
            container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")
        ]
        assert probes == ["/livez", "/readyz"]


@pytest.mark.long
def test_overlays_make_these_objects(tmp_path: Path) -> None:
    need_program("go")
    built = tmp_path / "kustomize"
    environ = os.environ | {"GOTOOLCHAIN": "local"}
    subprocess.run(["go", "build", "-o", built, "."], cwd=KUSTOMIZE, env=environ, check=True)
    for overlay, count in OVERLAYS.items():
        done = subprocess.run(
            [built, DEPLOY / "overlays" / overlay], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        made = list(documents(done.stdout))
        assert len(made) == count
        for one in made:
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)
        (workers,) = (one for one in made if one["kind"] == "StatefulSet")
        labels = workers["spec"]["template"]["metadata"]["labels"]
        assert workers["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for service in (one for one in made if one["kind"] == "Service"):
            assert service["spec"]["selector"].items() <= labels.items()
