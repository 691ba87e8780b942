"""The report card: self-contained, safe, with the right pictures; and its explorer counts as Python does."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from audit.fakes import FakeArtifact, at, bright_episode, random_episodes, said
from referee.audit.exhibits import most_wrong, read_frames, worth_a_look
from referee.audit.judged import Judged
from referee.audit.measure import Metrics, audit, measure
from referee.audit.report import EMBEDDED_STATES, render, write_report
from referee.audit.words import headline, likely, percent, plain, verdict
from referee.episodes import EpisodeStore
from referee.errors import RefereeError

EPISODES = [
    bright_episode("wins", [10] * 8 + [200] * 6, [0] * 8 + [1] * 6),
    bright_episode("loses", [30] * 14, [0] * 14),
    bright_episode("<b>paid</b>", [10] * 6 + [180] * 8, [0] * 14),
    bright_episode("missed", [10] * 14, [0] * 10 + [1] * 4),
]


def drawn(tmp_path: Path, **options: object) -> str:
    artifact = FakeArtifact(("front", "side"), calibration=at(0.4, 2, 3))
    metrics, judged = audit(artifact, EPISODES, draws=30)
    write_report(tmp_path / "report.html", metrics, judged, artifact, EPISODES, **options)  # type: ignore[arg-type]
    return (tmp_path / "report.html").read_text()


def test_one_file_without_a_network(tmp_path: Path) -> None:
    text = drawn(tmp_path, title="<script>alert(1)</script> & co", facts={"note": "<i>"})
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "default-src 'none'" in text
    for reference in re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text):
        assert reference.startswith("data:image/jpeg;base64,")
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "<b>paid</b>" not in text and "&lt;b&gt;paid&lt;/b&gt;" in text and "<i>" not in text
    assert text.count("<script") == 2 and "$" not in re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)
    assert "prefers-color-scheme: dark" in text and len(text) < 300_000


def test_a_hostile_id_stays_inside_its_attributes(tmp_path: Path) -> None:
    id = """x' " onload="alert(1)"><script>alert(1)</script>"""
    judged = [said(id, "00", 0.1, 0.9), said("s", "01", 0.1, 0.9)]
    metrics = measure(judged, at(), draws=2)
    metrics = replace(metrics, cameras={"<script>": dict.fromkeys(("auroc", "auroc_loss"), metrics["auroc"])})
    shown = worth_a_look(judged, at())
    pictures = {(each.id, frame): np.zeros((1, 8, 8, 3), np.uint8) for each in judged for frame in (0, 1)}
    text = render(metrics, judged, at(), most_wrong(judged, at()), shown, pictures, title=id, facts={id: id})
    assert text.count("<script") == 2 and 'onload="' not in text
    found = [html.unescape(each) for each in re.findall(r'data-id="([^"]*)"', text)]
    assert sorted(found) == ["s", id]


def test_what_it_says(tmp_path: Path) -> None:
    text = drawn(tmp_path)
    assert "Pays 1 of 2 failing episodes and detects 1 of 2 successes." in text
    assert "paid although it fails" in text and "detected after 1 step<" in text and '<b class="bad">missed' in text
    assert "without front" in text and "frame AUROC" in text and "2 of 3" in text


def test_the_pictures_are_those_of_their_frames(tmp_path: Path) -> None:
    text = drawn(tmp_path)
    cards = re.findall(
        r'<figure class="card"><img src="data:image/jpeg;base64,([^"]*)".*?<span>labelled (\w+)</span>'
        r"<code>(.*?)</code><span>frame (\d+)",
        text,
    )
    assert len(cards) == 3  # 2 + 1, each five states apart
    by_id = {episode.meta.id: episode for episode in EPISODES}
    for data, label, id, frame in cards:
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        episode = by_id[html.unescape(id)]
        assert image.shape == (6, 12, 3)  # both cameras, side by side
        assert abs(int(image[3, 3, 0]) - int(episode.observations["main_images"][int(frame), 0, 0, 0])) <= 3
        assert abs(int(image[3, 9, 0]) - 100) <= 3
        assert label == ("success" if episode.success is not None and episode.success[int(frame)] else "failure")


def test_the_scores_in_it_are_those_judged(tmp_path: Path) -> None:
    text = drawn(tmp_path)
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text)[1])  # type: ignore[index]
    assert data["ids"][2] == "<b>paid</b>" and data["sizes"] == [14] * 4
    logits = np.frombuffer(base64.b64decode(data["logits"]), "<i2") / 1000
    labels = np.frombuffer(base64.b64decode(data["labels"]), np.int8)
    _, judged = audit(FakeArtifact(("front", "side")), EPISODES, draws=2)
    assert logits == pytest.approx(np.concatenate([each.logits for each in judged]), abs=6e-4)
    assert labels.tolist() == np.concatenate([each.labels for each in judged]).tolist()
    assert data["threshold"] == pytest.approx(np.log(0.4 / 0.6)) and (data["k"], data["n"]) == (2, 3)


def page(judged: list[Judged], operating: object) -> tuple[Metrics, str]:
    """A report without pictures."""
    metrics = measure(judged, operating, draws=10)  # type: ignore[arg-type]
    return metrics, render(metrics, judged, operating, [], [], {}, title="t", facts={})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
@pytest.mark.parametrize(("threshold", "k", "n"), [(0.5, 1, 1), (0.8, 2, 3), (0.97, 3, 5)])
def test_the_explorer_counts_as_python_does(tmp_path: Path, threshold: float, k: int, n: int) -> None:
    judged = random_episodes(60, skill=1.0, states=20)
    judged += [
        said("u", "0?1?1", 0.2, 0.99, 0.6, 0.99, 0.99),
        said("n", "??", 0.9, 0.9),
        said("f", "??0", 0.9, 0.9, 0.9),
    ]
    metrics, text = page(judged, at(threshold, k, n))
    (tmp_path / "report.html").write_text(text)
    command = [
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        f"--user-data-dir={tmp_path}/c",
    ]
    dom = subprocess.run(
        [*command, f"file://{tmp_path}/report.html"], capture_output=True, text=True, timeout=120
    ).stdout
    shown = {name: re.sub(r"<small>.*", "", value) for name, value in re.findall(r'<td id="(\w+)">(.*?)</td>', dom)}
    counts = metrics.counts
    for name, kind, of in (
        ("paid", "paid", "failing_episodes"), ("detected", "detected", "success_episodes"),
        ("early", "early", "success_episodes"), ("missed", "missed", "success_episodes"),
    ):  # fmt: skip
        assert shown[name].startswith(f"{counts[kind]} of {counts[of]} ="), name
    assert shown["steps"] == f"{metrics['steps_to_detect'].value:g}"
    for name, key in (("precision", "precision"), ("recall", "recall"), ("fpr", "false_positive_rate")):
        assert float(shown[name].rstrip(" %")) == pytest.approx(100 * metrics[key].value, abs=0.051), name


def test_many_states_are_thinned_to_stay_small() -> None:
    states = EMBEDDED_STATES // 10
    random = np.random.default_rng(0)
    judged = [
        Judged(f"e{i}", np.arange(states) > states // 2, random.normal(size=states).astype(np.float32))
        for i in range(25)
    ]
    judged = [Judged(each.id, each.labels.astype(np.int8), each.logits) for each in judged]
    _, text = page(judged, at())
    assert "9 of the 25 episodes, taken evenly." in text and len(text) < 1_000_000


def test_the_most_wrong_frames() -> None:
    judged = [
        said("a", "0000000000", 0.1, 0.9, 0.95, 0.9, 0.1, 0.1, 0.1, 0.1, 0.8, 0.1),
        said("b", "1111", 0.9, 0.2, 0.9, 0.9),
        said("c", "0?0", 0.6, 0.99, 0.4),
    ]
    found = most_wrong(judged, at())
    assert [(each.episode, each.frame, each.label) for each in found] == [
        ("a", 2, 0),
        ("a", 8, 0),
        ("c", 0, 0),
        ("b", 1, 1),
    ]
    assert found[0].probability == pytest.approx(0.95, abs=1e-6)
    assert [each.episode for each in most_wrong(judged, at(), 2)] == ["a", "b"]  # half of each
    assert most_wrong(judged, at(0.9999), 24)[0].label == 1
    many = random_episodes(200, skill=0.3)
    found = most_wrong(many, at())
    assert len(found) == 24 and sum(each.label for each in found) == 12
    assert max([each.episode for each in found].count(each.episode) for each in found) <= 3


def test_the_episodes_worth_a_look() -> None:
    judged = [
        said("refused", "00", 0.1, 0.2),
        said("paid", "00", 0.1, 0.9),
        said("detected", "01", 0.1, 0.9),
        said("slow", "011", 0.1, 0.3, 0.9),
        said("missed", "01", 0.1, 0.2),
        said("early", "001", 0.9, 0.2, 0.9),
        said("nobody", "??", 0.9, 0.9),
    ]
    shown = [(each.judged.id, each.why) for each in worth_a_look(judged, at())]
    assert shown[:6] == [
        ("paid", "worst"), ("missed", "worst"), ("early", "worst"), ("slow", "worst"),
        ("detected", "best"), ("refused", "best"),
    ]  # fmt: skip
    assert len(shown) == 6  # nothing is left to draw, and nothing is shown twice
    many = random_episodes(40)
    assert [each.why for each in worth_a_look(many, at())] == ["worst"] * 4 + ["best"] * 2 + ["random"] * 2


def test_frames_are_read_from_where_they_are(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    for episode in EPISODES[:2]:
        store.append(episode)
    wanted = {"wins": [9, 2, 9]}
    for source in (store, EPISODES):
        found = read_frames(source, ("side", "front"), wanted)
        assert list(found) == [("wins", 2), ("wins", 9)]
        assert found["wins", 9].shape == (2, 6, 6, 3) and found["wins", 9][:, 0, 0, 0].tolist() == [100, 200]


def promise(paid: int, failing: int, detected: int = 50, winning: int = 50) -> tuple[str, str, str]:
    judged = [said(f"f{i}", "00", 0.1, 0.9 if i < paid else 0.2) for i in range(failing)]
    judged += [said(f"s{i}", "01", 0.1, 0.9 if i < detected else 0.2) for i in range(winning)]
    return verdict(measure(judged, at(), draws=2))


def test_the_verdict_is_as_sure_as_the_data() -> None:
    assert promise(0, 500)[:2] == ("good", "holds")
    tone, word, text = promise(0, 40)
    assert (tone, word) == ("open", "not proven")
    assert "may be as high as 8.8 %: 40 failing episodes cannot tell" in text
    assert promise(10, 100)[:2] == ("bad", "too many")
    assert "at least 5.5 %" in promise(10, 100)[2]
    assert promise(0, 0)[:2] == ("open", "not measured")
    assert promise(0, 500, 40)[:2] == ("open", "misses some")
    assert promise(0, 40, 10)[:2] == ("bad", "misses most")
    assert "No success is detected" in promise(0, 40, 0)[2]


def test_tainted_numbers_are_marked_loudly() -> None:
    judged = random_episodes(20)
    metrics = measure(judged, at(), notes=["trained on these"], tainted=True, draws=2)
    assert verdict(metrics)[:2] == ("bad", "proves nothing")
    text = render(metrics, judged, at(), [], [], {}, title="t", facts={})
    assert 'class="notes loud"' in text
    assert "No failing episode was there" in headline(measure([said("s", "01", 0.1, 0.9)], at(), draws=2))


def test_numbers_have_the_digits_that_they_are_worth() -> None:
    assert [percent(x) for x in (0, 0.008, 0.5, 0.9991, 0.99999, 1)] == [
        "0 %",
        "0.8 %",
        "50.0 %",
        "99.9 %",
        "100 %",
        "100 %",
    ]
    assert [plain(x) for x in (float("nan"), 2.0, 0.1234, 0.99961)] == ["–", "2", "0.123", "0.9996"]
    assert [likely(x) for x in (0.5, 0.998, 0.9999, 1.0, 0.0)] == ["0.50", "0.998", "0.9999", "> 0.9999", "< 0.0001"]


def test_nothing_is_written_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    artifact = FakeArtifact()
    metrics, judged = audit(artifact, EPISODES, draws=2)
    with pytest.raises(RefereeError, match="cannot write"):
        write_report(tmp_path / "file" / "report.html", metrics, judged, artifact, EPISODES)
