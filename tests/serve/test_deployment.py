"""The Dockerfile and the systemd unit: what they name exists, and what they run works."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from discode._cli import app
from tests.helpers.ports import closed_port
from tests.helpers.serving import running

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
UNIT = re.search(
    r"^```ini\n(.*?)^```$", (ROOT / "docs/serving.md").read_text(encoding="utf-8"), re.M | re.S
)


def steps() -> Iterator[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def step(name: str) -> str:
    """Return the arguments of the last instruction of a name."""
    return dict(steps())[name]


def options_of_serve() -> set[str]:
    command = typer.main.get_command(app)
    serve = command.commands["serve"]  # type: ignore[attr-defined]
    return {option for parameter in serve.params for option in parameter.opts}


def test_the_image_is_made_of_what_is_there() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules  # all else stays outside
    copied = {
        source
        for name, rest in steps()
        if name == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    }
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # What the build reads must be in the context, and the extra must be one of ours.
    licences = {name for name in project["license-files"] if not name.startswith("src/")}
    assert {project["readme"], *licences, "pyproject.toml", "src"} == copied
    (extra,) = re.findall(r"'\.\[(\w+)\]'", " ".join(rest for _, rest in steps()))
    assert extra in project["optional-dependencies"]
    (base,) = {rest.split()[0] for name, rest in steps() if name == "FROM"}
    version = re.fullmatch(r"python:(3\.\d+)-slim", base)
    assert version
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_the_image_runs_the_service_and_not_as_root() -> None:
    program, verb, *options = json.loads(step("ENTRYPOINT"))
    assert (program, verb) == ("discode", "serve")
    assert {option for option in options if option.startswith("--")} <= options_of_serve()
    assert options[options.index("--port") + 1] == step("EXPOSE")
    user, group = map(int, step("USER").split(":"))
    assert min(user, group) >= 1000
    names = [name for name, _ in steps()]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")


def test_the_health_check_tells_whether_it_is_up() -> None:
    check = json.loads(step("HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "python"

    def healthy(port: int) -> bool:
        command = [sys.executable, *(part.replace("8000", str(port)) for part in check[1:])]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    with running(token="secret") as client:
        assert healthy(client.port)
    with closed_port() as port:
        assert not healthy(port)
    with running(hosts=("judge.example",)) as client:  # it answers, but 421
        assert not healthy(client.port)


def test_the_unit_runs_the_service_confined(tmp_path: Path) -> None:
    assert UNIT
    unit = configparser.RawConfigParser(strict=False)  # a key may be there twice
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT[1].replace("\\\n", " "))
    service = unit["Service"]
    program, verb, *options = shlex.split(service["ExecStart"])
    assert (Path(program).name, verb) == ("discode", "serve")
    assert {option for option in options if option.startswith("--")} <= options_of_serve()
    store = Path(options[options.index("--store") + 1])
    assert store.parent == Path("/var/lib") / service["StateDirectory"]
    for name, value in {"DynamicUser": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes",
                        "CapabilityBoundingSet": ""}.items():  # fmt: skip
        assert service[name] == value
    if not shutil.which("systemd-analyze"):
        return
    path = tmp_path / "discode.service"
    path.write_text(UNIT[1].replace(program, "/bin/true"), encoding="utf-8")
    for command in (["verify"], ["security", "--offline=true", "--threshold=15"]):
        done = subprocess.run(
            ["systemd-analyze", *command, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr
