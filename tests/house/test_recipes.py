"""The recipes of examples/operate: each is parsed by what will read it, where that is installed; commands run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import persist
from persist.tools.cli import dispatch
from persist.tools.cli.command import app
from persist.tools.cli.main import main
from persist.tools.web.metrics import Exposition
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "operate"
UNITS = sorted(FOLDER.glob("*.service"))
yaml = pytest.importorskip("yaml")


def check_command(arguments: list[str]) -> None:
    """Let the command line parse a call, and not run it."""
    assert dispatch.COMMANDS  # Its import declares the commands.
    group: Any = typer.main.get_command(app)
    command = group.commands[arguments[0]]
    command.make_context(arguments[0], [*arguments[1:]])


def manifests() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each manifest that makes pods, and the pod."""
    for manifest in manifests():
        spec = manifest.get("spec", {})
        if manifest["kind"] == "CronJob":
            yield manifest, spec["jobTemplate"]["spec"]["template"]
        elif "template" in spec:
            yield manifest, spec["template"]


def test_the_image_installs_extras_that_there_are_and_runs_as_nobody_special() -> None:
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    steps = [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]
    assert {step for step, _ in steps} == {"FROM", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [extras] = re.findall(r"/source\[([\w,]+)\]", "\n".join(lines))
    assert {*extras.split(",")} <= {*known}
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["persist"]
    assert dict(steps)["USER"] == "10001"


def test_compose_starts_commands_that_there_are() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert {*services} == {"init", "ingest", "maintain", "serve"}
    for name, service in services.items():
        assert (ROOT / "examples/operate" / service["build"]["context"]).resolve() == ROOT
        assert {*service.get("depends_on", {})} <= {*services}
        if name != "init":
            check_command([str(word) for word in service["command"]])


@pytest.mark.outside
def test_compose_is_taken_by_docker() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    command = [docker, "compose", "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PERSIST_SERVE_TOKEN": "t"}
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.outside
def test_compose_is_what_its_specification_allows() -> None:
    specification = pytest.importorskip("compose_spec", reason="not installed: pip install compose-spec")
    text = (FOLDER / "compose.yaml").read_text()
    specification.PyCompose.from_json(json.dumps(yaml.safe_load(text))).validate_volumes()
    with pytest.raises(ValueError, match="comand"):
        specification.PyCompose.from_json(json.dumps(yaml.safe_load(text.replace("command:", "comand:"))))


@pytest.mark.outside
@pytest.mark.parametrize("version", ["1.28", "1.37.0"])
def test_kubernetes_takes_every_field_of_the_manifests(version: str, tmp_path: Path) -> None:
    """By the schemas of the resources, and with nothing in them that the schemas do not know."""
    validate = shutil.which("kubernetes-validate", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if validate is None:
        pytest.skip("kubernetes-validate is not installed: pip install kubernetes-validate")
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text((FOLDER / "kubernetes.yaml").read_text().replace("replicas:", "replikas:"))
    for path, is_right in ((FOLDER / "kubernetes.yaml", True), (misspelt, False)):
        command = [validate, "--strict", "-k", version, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_right, done.stdout + done.stderr


def test_kubernetes_has_pods_that_their_owners_select_and_commands_that_there_are() -> None:
    kinds = [manifest["kind"] for manifest in manifests()]
    assert sorted(kinds) == ["ConfigMap", "CronJob", *["Deployment"] * 3, "Service", "StatefulSet"]
    labels = []
    for manifest, pod in pods():
        if manifest["kind"] != "CronJob":
            assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
            labels.append(pod["metadata"]["labels"])
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes
            if "args" in container:
                check_command(container["args"])
    [service] = [manifest for manifest in manifests() if manifest["kind"] == "Service"]
    assert service["spec"]["selector"] in labels
    [served] = [pod for _, pod in pods() if pod.get("metadata", {}).get("labels") == service["spec"]["selector"]]
    ports = {port["name"] for port in served["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_units_start_commands_that_there_are_and_systemd_takes_them(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    [start] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(start)
    assert program == "/opt/persist/bin/persist"
    check_command(arguments)
    if (analyze := shutil.which("systemd-analyze")) is None:
        return
    installed = tmp_path / unit.name.replace("@", "@one")
    installed.write_text(text.replace(program, sys.executable))  # It looks whether the program is there.
    done = subprocess.run([analyze, "verify", str(installed)], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if installed.name in line]
    assert (done.returncode, own) == (0, [])


def test_the_lines_of_cron_run_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, copy = tmp_path / "shop", tmp_path / "copy"
    with persist.open(place) as client:
        client.write("orders", [{"id": n, "amount": n} for n in range(10)], key=["id"])
        client.create_view("total", "SELECT sum(amount) AS total FROM orders").close()
    lines = (FOLDER / "crontab").read_text().splitlines()
    jobs = [line for line in lines if re.match(r"[*\d]", line)]
    assert len(jobs) == 5
    for job in jobs:
        *when, user, program = job.split(None, 6)[:7]
        assert (len(when), user, program.split()[0]) == (5, "persist", "persist")
        assert all(re.fullmatch(r"\*(/\d+)?|\d+", field) for field in when)
        said = program.replace("$PERSIST_LOCATION", str(place)).replace("$PERSIST_BACKUP", str(copy))
        assert main(shlex.split(said)[1:]) == 0, (said, capsys.readouterr())
    with persist.open(copy, mode="read") as client:
        assert client.load("total").snapshot().to_arrow().to_pylist() == [{"total": 45}]


def test_alerts_ask_for_metrics_that_there_are_and_prometheus_takes_them(tmp_path: Path) -> None:
    path = FOLDER / "alerts.yaml"
    rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    with persist.open(tmp_path) as client:
        made = client.create_or_load("orders", key={"k": int}, timeline="ms")
        made.write([(1, None)]).result()
        known = {*re.findall(r"^(persist_\w+)", Exposition(client).text(), re.MULTILINE)}
    asked = {name for rule in rules for name in re.findall(r"persist_\w+", rule["expr"])}
    assert asked <= known
    assert len(asked) >= 7
    if (promtool := shutil.which("promtool")) is not None:
        subprocess.run([promtool, "check", "rules", str(path)], check=True, capture_output=True)
