"""Where the commands of a page are run: in a folder with what they name, in one process, by a shell where need be."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.documented import names
from tests.documented.pages import ROOT, Block, Command, commands, targets
from tests.documented.smaller import SB3, smaller
from tests.documented.typing_person import typing
from tests.documented.world import VISION, World

from referee.cli import main

BIN = Path(sys.executable).parent
SHIM = """#!/bin/sh
# Stands where a script looks for `referee`, and notes what it was called with: that is run in the tests' own process.
{ env -0; printf '\\0'; printf '%s\\0' "$@"; } > "$REFEREE_CALLED"
"""
SYNOPSIS = ("…", "[key=value", "…]")
"""Words that say: and more, if you like."""


class Stage:
    """Runs the blocks of a page."""

    def __init__(self, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, ran: set[str]) -> None:
        self.world, self.folder, self.ran = world, folder, ran
        self.page = ""
        self.names: dict[str, Any] = {}
        self._patch = monkeypatch
        self._given: set[str] = set()
        self._servers: list[subprocess.Popen[str]] = []
        self._port = free_port()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.terminate()
            server.wait(20)

    def open(self, page: str) -> None:
        """Begin with a page: its folder has all that pages name."""
        self.page = page
        self._given = self.world.furnish(self.folder, page)
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        bin = self.folder / "bin"
        bin.mkdir()
        (bin / "referee").write_text(SHIM)
        (bin / "referee").chmod(0o755)
        self._patch.chdir(self.folder)
        self._patch.setenv("PWD", str(self.folder))
        self._patch.setenv("PATH", f"{bin}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}")
        self._patch.setenv("REFEREE_CALLED", str(self.folder / "called"))
        self._patch.setenv("EMBODIED_PATH", str(self.folder / "embodied"))
        self.names = {}

    def shell(self, block: Block, *, skip: Callable[[str], bool]) -> None:
        """Run the commands of a block, except for those that were run before."""
        for command in commands(block):
            if skip(command.text):
                continue
            key = f"{self.page in VISION} {command.text}"
            alone = self.page.startswith("README")  # nothing lies there that its commands have not made
            if alone or key not in self.ran or command.text.startswith(("export ", "referee serve")):
                self.ran.add(key)
                try:
                    self.run(command)
                except BaseException:
                    print(f"\n>>> {command}", file=sys.stderr)
                    raise

    def python(self, block: Block) -> None:
        """Run a block in the page's names."""
        self.names = {**names.given(self), **self.names, **names.made(self)}
        source = self.placed(block.text)
        for written, small in SB3.items():
            source = source.replace(written, small)
        exec(compile("\n" * (block.line - 1) + source, block.page, "exec"), self.names)
        names.after(self)

    def run(self, command: Command) -> None:
        """Run one command; an error where it fails, or where nobody knows how."""
        vision = self.page in VISION or "qwen" in command.text
        words = [word for word in shlex.split(self.placed(command.text, vision=vision)) if word not in SYNOPSIS]
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            variable, _, value = words.pop(0).partition("=")
            self._patch.setenv(variable, value)
        match words:
            case ["export", *variables]:
                for each in variables:
                    variable, _, value = each.partition("=")
                    self._patch.setenv(variable, os.path.expandvars(value))
            case ["referee", "serve", *rest]:
                self.serve(rest)
            case ["referee", *rest]:
                self.referee(rest)
            case ["python", "-m", module, *rest]:
                self.script(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), module, rest)
            case ["python", file, *rest]:
                self.script(lambda: runpy.run_path(file, run_name="__main__"), file, rest)
            case ["bash" | "sh" as shell, file, *rest]:
                self.front_door(shell, file, rest)
            case ["pip", "install", *rest]:
                check_extras(rest)
            case ["make", *targets]:
                done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
            case ["sudo", "apt-get", "install", *packages]:
                check_packages(packages)
            case ["echo", *_]:
                subprocess.run(["bash", "-c", command.text], check=True)
            case ["curl", *_]:
                self.curl(command.text)
            case _:
                raise AssertionError(f"{command}: nobody knows how to run this: see tests/test_documented_commands.py")

    def referee(self, words: list[str]) -> None:
        """A verb of our own, in this process."""
        self.make_room(words)
        small = smaller(words)
        with typing(presses(small)) if presses(small) else nullcontext():
            code = main(small)
        assert code == 0, f"exit code {code}: referee {shlex.join(small)}"

    def script(self, go: Callable[[], object], name: str, words: list[str]) -> None:
        """A Python program, in this process."""
        beside = [str(Path(words[0]).parent / "collected_data")] if "process_realworld_data" in name else []
        self.make_room(words, *beside)
        if "main_reward" in name or "train_embodied" in name:
            named = [] if "--config-name" in words else ["train_reward_model"]
            words = smaller(["run", *named, *words])[1 + len(named) :]
        if "train_reward_model" in name and words[0].startswith("--"):
            words = [*words, "--epochs", "1", "--batch-size", "32", "--width", "8"]
        self._patch.setattr(sys, "argv", [name, *words])
        code: object = None
        try:
            go()
        except SystemExit as end:
            code = end.code
        assert not code, f"exit code {code}: {name} {shlex.join(words)}"

    def front_door(self, shell: str, file: str, words: list[str]) -> None:
        """A script of examples/, by the shell; the `referee …` that it ends in, in this process."""
        called = self.folder / "called"
        called.unlink(missing_ok=True)
        done = subprocess.run([shell, file, *words], capture_output=True, text=True)
        assert done.returncode == 0 and called.exists(), f"{file}: {done.stderr}"
        variables, _, arguments = called.read_text().partition("\0\0")
        for line in variables.split("\0"):
            variable, _, value = line.partition("=")
            if variable in ("EMBODIED_PATH", "DUALVIEW_SFT_DATA_ROOT"):
                self._patch.setenv(variable, value)
        self.referee(arguments.removesuffix("\0").split("\0"))

    def serve(self, words: list[str]) -> None:
        """A server, while the page lasts."""
        self.make_room(words)
        command = [sys.executable, "-m", "referee.cli", "serve", *words, "--port", str(self._port)]
        self._servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        said = self._servers[-1].stdout
        assert said is not None
        line = said.readline()
        assert str(self._port) in line, line
        answering(self._port)

    def curl(self, text: str) -> None:
        """As it stands there, at the port that was free."""
        if shutil.which("curl") is None:
            pytest.skip("there is no curl on this machine")
        done = subprocess.run(
            ["bash", "-c", text.replace("8642", str(self._port)) + " --fail -sS"], capture_output=True, text=True
        )
        assert done.returncode == 0 and '"probability"' in done.stdout, done.stdout + done.stderr

    def placed(self, text: str, *, vision: bool = False) -> str:
        """A word with the placeholders in it replaced by what they stand for here."""
        model = self.world.vlm if vision else self.world.artifact
        for pattern, value in (
            (r"logs/(<run>|RUN\b)", "logs/run"),
            (r"logs/<another day>", "logs/day2"),
            (r"/models/Qwen3-VL-4B-Instruct", str(self.world.vlm)),
            (r"\bLORA\b", str(self.world.lora)),
            (r"\bMODEL\b", str(model)),
            (r"\bEPISODES\b", str(self.world.store)),
            (r"\bPRESET\b", "panda_ppo_mlp"),
            (r"127\.0\.0\.1\", 8642", f'127.0.0.1", {self._port}'),
        ):
            text = re.sub(pattern, lambda _, value=value: value, text)
        return text

    def make_room(self, words: list[str], *more: str) -> None:
        """What a command makes anew is not there before."""
        for target in (*more, *targets(words)):
            if target.rstrip("/") in self._given:
                self._given.discard(target.rstrip("/"))
                shutil.rmtree(self.folder / target, ignore_errors=True)


def presses(words: list[str]) -> str:
    """What a person types while this goes on."""
    if any("collect_dataset" in word for word in words[:4]):
        return "ca"
    return "1\n" if "reward.refine.labeller=terminal" in words or words[:2] == ["refine", "run"] else ""


def check_extras(words: list[str]) -> None:
    """That pip would find the extras that are named."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    groups = [found[1] for word in words if (found := re.fullmatch(r"(?:\.|referee-rl)\[([^\]]+)\]", word))]
    named = [extra for group in groups for extra in group.split(",")]
    assert set(named) <= set(extras), f"pyproject.toml has no extra {set(named) - set(extras)}"
    assert named or words == ["-e", "."], words
    assert all((ROOT / after).exists() for word, after in itertools.pairwise(words) if word == "-c")


def check_packages(words: list[str]) -> None:
    """That the Makefile installs them, too."""
    makefile = (ROOT / "Makefile").read_text()
    assert all(word in makefile for word in words if not word.startswith("-")), words


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answering(port: int, seconds: float = 60) -> None:
    """Wait until somebody listens there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server does not answer")
