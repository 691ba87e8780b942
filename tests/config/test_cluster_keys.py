"""The cluster section: names of one's own, lists of sections, and the documents' spellings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from referee.config import load, show, to_yaml
from referee.config.cluster import HardwareConfig, HardwareUnitConfig, NodeGroupConfig, PlacementConfig
from referee.runtime.placement import plan

pytestmark = pytest.mark.usefixtures("quick")

Error = Callable[..., str]
Mine = Callable[[str], str]

DOCUMENT_004 = """\
cluster:
  num_nodes: 2
  component_placement:
    env:
      node_group: franka
      placement: 0
    reward:
      node_group: "4090"
      placement: 0
    actor,rollout: 0-3
  node_groups:
  - label: "4090"
    node_ranks: 0
  - label: franka
    node_ranks: 1
    hardware:
      type: Franka
      configs:
      - robot_ip: ROBOT_IP
        node_rank: 1
"""


def test_the_cluster_of_004(mine: Mine) -> None:
    cluster = load(mine(DOCUMENT_004), ["cluster.node_groups.1.hardware.configs.0.robot_ip=172.16.0.2"]).config.cluster
    assert (cluster.backend, cluster.num_nodes) == ("local", 2)
    assert cluster.component_placement == {
        "env": PlacementConfig(node_group="franka", placement=0),
        "reward": PlacementConfig(node_group="4090", placement=0),
        "actor,rollout": PlacementConfig(placement="0-3"),
    }
    arm = HardwareUnitConfig(robot_ip="172.16.0.2", node_rank=1)
    assert cluster.node_groups == (
        NodeGroupConfig(label="4090", node_ranks=0),
        NodeGroupConfig(label="franka", node_ranks=1, hardware=HardwareConfig(type="Franka", configs=(arm,))),
    )


def test_each_value_has_its_source(mine: Mine) -> None:
    loaded = load(mine(DOCUMENT_004), ["cluster.component_placement.env=all"])
    assert loaded.sources["cluster.component_placement.env.placement"] == "command line"
    assert loaded.sources["cluster.component_placement.reward.placement"] == "mine.yaml"
    assert loaded.sources["cluster.node_groups.1.hardware.configs.0.robot_ip"] == "mine.yaml"
    assert loaded.config.cluster.component_placement["env"] == PlacementConfig(placement="all")


def test_a_list_replaces_a_list(mine: Mine) -> None:
    loaded = load(mine(DOCUMENT_004), ["cluster.node_groups=[{label: one}]"])
    assert loaded.config.cluster.node_groups == (NodeGroupConfig(label="one"),)
    for empty in ("cluster.node_groups=[]", "~cluster.node_groups"):
        assert load(mine(DOCUMENT_004), [empty]).config.cluster.node_groups == ()
    for empty in ("cluster.component_placement=null", "~cluster.component_placement"):
        assert load(mine(DOCUMENT_004), [empty]).config.cluster.component_placement is None


def test_a_saved_cluster_loads_the_same(mine: Mine, here: Path) -> None:
    loaded = load(mine(DOCUMENT_004))
    for text in (to_yaml(loaded), show(loaded)):
        (here / "saved.yaml").write_text(text, encoding="utf-8")
        assert load("saved.yaml").config == loaded.config


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("cluster.component_placement.env.placment=0",
         "unknown key cluster.component_placement.env.placment (command line): "
         "did you mean cluster.component_placement.*.placement?"),
        ("cluster.component_placement.env={node_group: franka}",
         "cluster.component_placement.env.placement is missing: set it to a string: slots of those nodes: "
         "0, 0-3, 0,2 or all"),
        ("cluster.component_placement=0-0",
         "cluster.component_placement (command line) is a mapping of names to sections, each with keys "
         '(node_group, placement, …), got "0-0": set its keys'),
        ("cluster.node_groups=franka",
         "cluster.node_groups (command line) is a list of sections, each with keys "
         '(label, node_ranks, env_vars, hardware, …), got "franka": set its keys'),
        ("cluster.node_groups=[{lable: x}]",
         "unknown key cluster.node_groups.0.lable (command line): did you mean cluster.node_groups.*.label?"),
        ("cluster.node_groups.1.label=x",
         "cluster.node_groups.1 leaves a gap: cluster.node_groups is a list, number it from 0"),
        ("cluster.node_groups=[{hardware: {type: Panda}}]",
         "cluster.node_groups.0.hardware.type (command line) must be one of Franka, "
         'got "Panda": did you mean Franka?'),
        ("cluster.node_groups=[{hardware: {type: Franka, configs: [{node_rank: 0}]}}]",
         "cluster.node_groups.0.hardware.configs.0.robot_ip is missing: set it to a string: "
         "address of the robot's controller"),
        ("cluster.num_nodes=0", "cluster.num_nodes (command line) must be at least 1, got 0"),
        ("cluster.backend=slurm", 'cluster.backend (command line) must be one of local, process, ray, got "slurm"'),
    ],
)  # fmt: skip
def test_wrong_keys_are_one_line(error: Error, override: str, line: str) -> None:
    assert error("panda_expert", override) == line


def test_a_range_of_slots_for_the_reward_is_said_to_be_one() -> None:
    place = "cluster.component_placement={actor: 0-0, env: 0-0, rollout: 0-0, reward: 0-1}"
    (said,) = load("panda_ppo_mlp_resnet_reward", [place]).notices
    assert said.startswith("cluster.component_placement.reward=0-1 are the slots 0 to 1, with a worker in each")
    assert said.endswith("slot 1 alone is 1-1")
    assert not load("panda_ppo_mlp_resnet_reward", ["cluster.component_placement={env: 0-1, reward: 0-0}"]).notices


PLACES = "cluster.component_placement"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([f"{PLACES}.env=0,1"], {"env": "0,1"}),
        ([f"{PLACES}.env=0-1,3"], {"env": "0-1,3"}),
        ([f"+{PLACES}.env.placement=0,2", f"{PLACES}.env.node_group=franka"], {"env": ("franka", "0,2")}),
        ([f"{PLACES}.actor,env,rollout=0-0"], {"actor,env,rollout": "0-0"}),
        ([f"{PLACES}={{actor,env,rollout: 0-0}}"], {"actor,env,rollout": "0-0"}),
        ([f"{PLACES}={{'actor,env,rollout': 0-0, reward: 0,1}}"], {"actor,env,rollout": "0-0", "reward": "0,1"}),
        ([f"{PLACES}='actor,env,rollout: 0-0'"], {"actor,env,rollout": "0-0"}),
        ([f"{PLACES}={{env: 0,1,3, actor, reward: 2}}"], {"env": "0,1,3", "actor,reward": 2}),
        ([f'{PLACES}={{env: {{node_group: "4090", placement: 0,1}}, reward: all}}'],
         {"env": ("4090", "0,1"), "reward": "all"}),
    ],
    ids=str,
)  # fmt: skip
def test_commas_on_the_command_line(lines: list[str], expected: dict[str, object]) -> None:
    places = load("panda_ppo_mlp", lines).config.cluster.component_placement
    sections = {
        names: PlacementConfig(node_group=where[0], placement=where[1])
        if isinstance(where, tuple)
        else PlacementConfig(placement=where)  # type: ignore[arg-type]
        for names, where in expected.items()
    }
    assert places == sections


def test_a_comma_places_a_rank_in_each_slot(mine: Mine) -> None:
    text = "cluster:\n  component_placement:\n    actor,rollout: 0-0\n    env: 0,2\n    reward: 1\n"
    in_yaml = load(mine(text)).config.cluster
    typed = load("panda_expert", [f"{PLACES}={{actor,rollout: 0-0, env: 0,2, reward: 1}}"]).config.cluster
    assert in_yaml == typed
    planned = plan(typed)
    assert [rank.slot for rank in planned["env"]] == [0, 2]
    assert [rank.slot for name in ("actor", "rollout", "reward") for rank in planned[name]] == [0, 0, 1]


def test_several_nodes_of_a_group() -> None:
    lines = ["cluster.num_nodes=3", "cluster.node_groups=[{label: gpu}]", "cluster.node_groups.0.node_ranks=0,2"]
    (group,) = load("panda_ppo_mlp", lines).config.cluster.node_groups
    assert group.node_ranks == "0,2"


@pytest.mark.parametrize("text", ["{actor,env}", "{env: 0, actor", "{env: , actor: 0}"])
def test_a_placement_that_cannot_be_read(error: Error, text: str) -> None:
    line = error("panda_ppo_mlp", f"{PLACES}={text}")
    assert line.startswith(f"cannot read override {PLACES}={text}: ")
    assert "write cluster.component_placement.env=0,1 or" in line


def test_an_empty_placement_clears_the_one_below(mine: Mine, here: Path) -> None:
    assert load(mine(DOCUMENT_004), [f"{PLACES}={{}}"]).config.cluster.component_placement is None
    replaced = load(mine(DOCUMENT_004), [f"{PLACES}={{}}", f"{PLACES}.env=0"]).config.cluster.component_placement
    assert replaced == {"env": PlacementConfig(placement=0)}
    (here / "base.yaml").write_text(Path(mine(DOCUMENT_004)).read_text(), encoding="utf-8")
    (here / "over.yaml").write_text("defaults: [base, _self_]\ncluster: {component_placement: {}}\n", encoding="utf-8")
    assert load("over.yaml").config.cluster.component_placement is None
    assert load("over.yaml").config.cluster.num_nodes == 2
    assert load(mine(DOCUMENT_004), ["cluster={}"]).config.cluster.component_placement is not None
