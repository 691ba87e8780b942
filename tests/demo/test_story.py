"""The story of a demo: it claims what its numbers show, shows what it claims, and needs nothing but itself."""

import base64
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from referee.audit import svg
from referee.demo import page
from referee.demo.page import write_story
from referee.demo.story import Arm, Card, Fooled, Stage, Story
from referee.demo.words import headline, title
from referee.errors import RefereeError
from referee.metrics import Rate

NAN = math.nan


def arm(
    name: str,
    true: list[float],
    model: list[float],
    end: int,
    said: float,
    alarm: int | None = None,
    swaps: tuple[int, ...] = (),
    labels: int = 0,
    film: Path | None = None,
) -> Arm:
    steps = [1000 * (place + 1) for place in range(len(true))]
    return Arm(name, steps, true, model, alarm, swaps, Rate(10, 100), Rate(end, 100), said, labels, 1.25, film)


HACKED = arm("frozen", [NAN, 0.2, 0.3, 0.3, 0.3], [NAN, 0.3, 0.7, 0.9, 0.9], 31, 0.93, alarm=3000)
SILENT = replace(HACKED, alarm_at=None)
HONEST = arm("frozen", [0.1, 0.5, 0.9, 0.9], [0.1, 0.5, 0.92, 0.9], 90, 0.93)
REPAIRED = arm("refined", [0.1, 0.3, 0.9, 0.9], [0.1, 0.6, 0.9, 0.9], 92, 0.94, 2000, (3000,), 120)


def told(*arms: Arm) -> Story:
    picture = np.zeros((2, 64, 64, 3), np.uint8)
    picture[0, ..., 0], picture[1, ..., 1] = 200, 100
    return Story(
        task="PickCube",
        task_words="Pick up the cube.",
        stages=[Stage("Collect", 70.2, "24 episodes"), Stage("Train", 4.26, "8 epochs")],
        arms=arms,
        fooled=[Fooled(picture, 0.97, 0.03, False, 12_000), Fooled(picture, 0.999, 0.7, True, 8)],
        cards=[Card("before", {"accuracy": "61 % [52, 70]"}), Card("after", {"accuracy": "94 % [89, 97]"})],
        labels=120,
        label_minutes=10.0,
        seconds_per_label=5.0,
        robot_minutes=33.0,
        examples=[("A success", picture)],
        links={"The audit": "runs/a b/report.html"},
        facts={"seed": "0"},
    )


def written(tmp_path: Path, story: Story) -> str:
    write_story(tmp_path / "report.html", story)
    return (tmp_path / "report.html").read_text()


def test_fooled_caught_and_repaired() -> None:
    story = told(HACKED, REPAIRED)
    assert title(story) == "Fooled, caught, repaired"
    assert headline(story) == (
        "The frozen reward model was fooled: at the end it called 93 % of the episodes a success, but only 31 % were; "
        "the alarm was raised at step 3\u202f000. Refinement closed the gap to 2 points with 120 labels, and true "
        "success ended at 92 % instead of 31 %."
    )


def test_fooled_and_silent() -> None:
    assert title(told(SILENT)) == "Fooled, not caught"
    assert headline(told(SILENT)).endswith("but only 31 % were; the alarm stayed silent.")
    assert title(told(SILENT, REPAIRED)) == "Fooled, not caught, repaired"


def test_fooled_on_the_way_only() -> None:
    found = replace(HACKED, end=Rate(90, 100))
    assert title(told(found, REPAIRED)) == "Fooled on the way, caught"
    assert "fooled on the way: around step 4\u202f000 it said 60 points too much, and 3 points at the end" in headline(
        told(found)
    )
    assert "With refinement, and 120 labels, the gap ended at 2 points" in headline(told(found, REPAIRED))
    unsure = replace(found, end=Rate(0, 0), end_model=NAN)
    assert "too much; the alarm was raised" in headline(told(unsure))


def test_not_fooled() -> None:
    story = told(HONEST, REPAIRED)
    assert title(story) == "Not fooled this time"
    assert "was not fooled this time: it never said more than 3 points too much, and the policy" in headline(story)
    assert "closed" not in headline(story) and "ended at 92 % instead of 90 % (the intervals overlap)" in headline(
        story
    )
    assert headline(told(replace(HONEST, alarm_at=5))).endswith("the alarm was raised at step 5 all the same.")
    spike = replace(HONEST, model=[0.1, 0.9, 0.92, 0.9])  # one point is no evidence
    assert not spike.fooled and replace(spike, model=[0.1, 0.9, 1.3, 0.9]).fooled


def test_a_single_mistake_of_a_model_that_was_not_fooled(tmp_path: Path) -> None:
    story = told(HONEST, REPAIRED)
    text = written(tmp_path, story)
    assert "What fooled it" not in text and "Where it was wrong all the same" in text
    for after, still, words in (
        (0.03, False, "no longer takes it for one"),
        (0.7, True, "still takes it for one"),
        (0.7, False, "no longer takes it for one"),  # its threshold is higher
        (0.3, True, "still takes it for one"),
        (NAN, False, "model said.</p>"),
    ):
        text = written(tmp_path, replace(story, fooled=[replace(story.fooled[0], after=after, still=still)]))
        assert ('class="bad"' in text) == still
        assert "This frame shows no success" in text and words in text


def test_too_strict_is_no_fooling() -> None:
    strict = replace(HONEST, model=[0.1, 0.3, 0.7, 0.75], end_model=0.75)
    story = told(strict, REPAIRED)
    assert title(story) == "Too strict, not fooled"
    assert headline(story) == (
        "The frozen reward model was not fooled but too strict: at the end it called 75 % of the episodes a success "
        "where 90 % were; the alarm stayed silent. Refinement closed the gap to 2 points with 120 labels, but "
        "true success ended at 92 % instead of 90 % (the intervals overlap)."
    )


def test_not_repaired() -> None:
    story = told(HACKED, replace(REPAIRED, end=Rate(60, 100)))
    assert title(story) == "Fooled, caught, not repaired"
    assert "Refinement did not close the gap: after 120 labels, 34 points were left at the end" in headline(story)
    humble = told(HACKED, replace(REPAIRED, end=Rate(33, 100), end_model=0.3))
    assert title(humble) == "Fooled, caught, made honest"
    assert "closed the gap to −3 points with 120 labels, but true success ended at 33 %" in headline(humble)
    timid = told(HACKED, replace(REPAIRED, end_model=0.5))
    assert title(timid).endswith("not repaired") and "the model says 42 points less than is true" in headline(timid)
    worse = told(HONEST, replace(REPAIRED, end=Rate(60, 100)))
    assert title(worse) == "Fooled in spite of refinement" and "did not keep the model honest" in headline(worse)


def test_nothing_is_claimed_of_what_is_not_known() -> None:
    empty = Arm("frozen", [1], [NAN], [NAN], None, (), Rate(0, 0), Rate(0, 0), NAN, 0, 0.0)
    assert "No policy was trained" in headline(told())
    assert "Nobody knows" in headline(told(empty)) and title(told(empty)) == "A reward model at work"
    assert "was not evaluated" in headline(told(HACKED, empty))


def test_the_numbers_are_those_computed(tmp_path: Path) -> None:
    text = written(tmp_path, told(HACKED, REPAIRED))
    low, high = Rate(31, 100).interval
    assert f"31.0 % <small>[{100 * low:.1f}, {100 * high:.1f}] of 100</small>" in text and "[22.8, 40.6]" in text
    assert "<td><b>62.0 points</b></td><td><b>2.0 points</b></td>" in text
    assert "<td>93.0 %</td><td>94.0 %</td>" in text and "evaluation episodes: gap at the end 62 points" in text
    assert "Lines: training episodes" in text and "Headings: evaluation episodes at the" in text
    assert "50.8 points" in text and "10.0 min" in text and "at 5 s per label" in text  # 61 points for 120 labels
    assert 'said <b>97 %</b> → after refinement <b class="good">3 %</b><small>step 12\u202f000' in text
    assert "said <b>&gt; 99 %</b>" in text and '<b class="bad">70 %</b>' in text
    assert "still takes 1 of these 2 for a success" in text
    assert "1 min 10 s" in text and "4.3 s" in text and "took 1 min 14 s" in text
    assert "61 % [52, 70]</td><td>94 % [89, 97]" in text


def test_one_file_without_a_network(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> & co"
    story = replace(
        told(replace(HACKED, name=evil), replace(REPAIRED, film=tmp_path / "none.gif")),
        task=evil,
        task_words=evil,
        stages=[Stage(evil, 1, evil)],
        cards=[Card(evil, {evil: evil})],
        examples=[(evil, np.zeros((1, 8, 8, 3), np.uint8))],
        links={evil: "javascript:alert(1)", "far": "https://example.com", "near": '../a "b".html'},
        facts={evil: evil},
    )
    text = written(tmp_path, story)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "<script" not in text and text.count("&lt;script&gt;") >= 12 and "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(|javascript:", text) and "$" not in text
    assert 'href="../a%20%22b%22.html"' in text and "prefers-color-scheme: dark" in text
    assert all(each.startswith("data:image/png;base64,") for each in re.findall(r'src="([^"]*)', text))


def test_views_lie_side_by_side(tmp_path: Path) -> None:
    text = written(tmp_path, told(HACKED))
    data, size = re.findall(r'src="data:image/png;base64,([^"]*)" (width="\d+" height="\d+")', text)[0]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert image.shape == (64, 128, 3) and size == 'width="288" height="144"'
    assert image[5, 5].tolist() == [200, 0, 0] and image[5, 100].tolist() == [0, 100, 0]


def test_films_may_be_missing_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = tmp_path / "film.gif"
    Image.new("RGB", (4, 4)).save(film)
    story = told(replace(HACKED, film=film), replace(REPAIRED, film=tmp_path / "none.gif"))
    text = written(tmp_path, story)
    assert base64.b64encode(film.read_bytes()).decode() in text and "The film of “refined” is not there." in text
    monkeypatch.setattr(page, "MOST_FILM", 10)
    assert "The film of “frozen” is too large" in written(tmp_path, story)
    assert "<h2>Films" not in written(tmp_path, told(HACKED))


def test_what_is_not_there_leaves_no_heading(tmp_path: Path) -> None:
    text = written(tmp_path, replace(told(), fooled=[], cards=[], links={}, stages=[], examples=[]))
    assert "What fooled it" not in text and "Report card" not in text and "Look further" not in text
    assert "per 100 labels" not in text


def test_lines_leave_out_what_is_nan() -> None:
    drawn = svg.lines([0, 10, 20, 30], [0, NAN, 0.5, 1], [0, 0.2, NAN, 1.0], alarm=20, swaps=[10], title="<t>")
    assert "nan" not in drawn.lower() and "&lt;t&gt;" in drawn
    sizes = {kind: len(points.split()) for kind, points in re.findall(r'class="(\w+)" points="([^"]*)"', drawn)}
    assert sizes == {"gap": 4, "said": 3, "true": 3}
    assert "alarm at 20" in drawn and drawn.count('class="swap"') == 1
    empty = svg.lines([], [], [])
    assert "gap" not in empty and "alarm" not in empty
    assert ">1.5 M<" in svg.lines([1_500_000], [1], [1]) and ">2 k<" in svg.lines([500], [1], [1], last=2000)


def test_lines_of_one_scale() -> None:
    drawn = svg.lines([0, 500], [0, 1], [0, 2], last=1000)  # beyond 1 is drawn at 1
    assert 'class="true" points="38.0,246.0 234.0,24.0"' in drawn
    assert 'class="said" points="38.0,246.0 234.0,24.0"' in drawn


def test_nothing_is_written_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefereeError, match="cannot write"):
        write_story(tmp_path / "file" / "report.html", told(HACKED))
