"""The page: well formed, self-contained, safe against hostile names, and at home in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fastbus
from fastbus.learner import WeakClassifier
from fastbus.report import write_report
from fastbus.report.numbers import Numbers

pytest.importorskip("matplotlib")
HOSTILE = '<script>alert("x")</script>'
NAMES = np.array([f"{HOSTILE}", "$\\frac{1}{$ & \"quoted\" 'it'", "数字 --> ]]> </svg><img src=x onerror=alert(1)>"])
VOID = {"meta", "link", "br", "img", "hr"}
LOADING = {"src", "href", "srcset", "data", "poster", "action", "xlink:href", "background"}


class Page(HTMLParser):
    """Tags that close in order, ids that are unique, and everything that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"{tag} is left open" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._look(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)

    def _look(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.problems.append(f"{tag} has an attribute twice")
        for name, value in attrs:
            if name == "id":
                if value in self.ids:
                    self.problems.append(f"id {value} twice")
                self.ids.add(value or "")
            if name in LOADING and not (value or "").startswith(("#", "data:")):
                self.problems.append(f"{tag} loads {value}")
            if name.startswith("on"):
                self.problems.append(f"{tag} has a handler {name}")
        if tag == "svg":
            self.labels.append(dict(attrs).get("aria-label") or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing, at {self.getpos()}")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Numbers]:
    """Digits in bags of 4 with hostile ids and class names, an early held-out curve, and noise."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:240], y[:240] % 3
    ids = np.array([f"{HOSTILE} {row // 4}" for row in range(240)])
    counts = {name: np.bincount(y[ids == name], minlength=3) for name in np.unique(ids)}
    labels = np.where(np.arange(240) % 3 == 0, NAMES[y], "")
    rule = fastbus.LabelProportion() & fastbus.NoisyLabel(rate=0.2)
    classifier = WeakClassifier(rule, classes=NAMES, epochs=3, held_out=0.2, random_state=0)
    classifier.fit(X, (counts, labels), bags=ids)
    place = tmp_path_factory.mktemp("report")
    made = write_report(place, classifier, X, (counts, labels), ids, NAMES[y], title=f"{HOSTILE} & co")
    assert sorted(path.name for path in place.iterdir()) == ["report.html", "report.json"]
    return made.page, made.numbers


def test_the_page_is_well_formed_and_self_contained(report: tuple[Path, Numbers]) -> None:
    text = report[0].read_text(encoding="utf-8")
    page = Page(text)
    assert page.problems == []
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", text)
    assert "script" not in page.tags and "img" not in page.tags and "iframe" not in page.tags
    assert page.tags.count("h1") == 1 and page.tags.count("h2") >= 6
    assert len(page.labels) >= 7 and all(page.labels)
    assert page.tags.count("figcaption") == page.tags.count("figure") == len(page.labels)
    assert 'lang="en"' in text and "prefers-color-scheme: dark" in text and "@media print" in text


def test_hostile_names_are_only_text(report: tuple[Path, Numbers]) -> None:
    text = report[0].read_text(encoding="utf-8")
    assert "<script" not in text and "<img" not in text and "onerror=alert(1)&gt;" in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; co" in text


def test_json_holds_the_same_numbers(report: tuple[Path, Numbers]) -> None:
    stored = json.loads((report[0].parent / "report.json").read_text(encoding="utf-8"))
    numbers = report[1]
    assert stored["title"] == numbers.title and tuple(stored["run"]["classes"]) == tuple(NAMES)
    assert stored["likelihood"]["per_instance"]["value"] == numbers.likelihood.per_instance.value
    assert [row["bag"] for row in stored["surprises"]] == [row.bag for row in numbers.surprises]
    assert {"epoch", "loss", "held_out"} <= stored["history"][0].keys()
    assert numbers.gold is not None
    assert f"{100 * numbers.gold.accuracy.value:.1f}" in report[0].read_text(encoding="utf-8")


def test_a_second_report_is_identical(report: tuple[Path, Numbers]) -> None:
    from fastbus.report.page import render

    assert render(report[1]) == report[0].read_text(encoding="utf-8")


def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here: install the package chromium to open the page in a real browser")
    return found


def opened(page: Path, place: Path) -> tuple[str, list[str]]:
    """Open a page: what the browser printed, and the addresses that the page, not the browser, asked for."""
    log = place / "net.json"
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    # the browser's own services find no host, the page would not either, but its wish is logged
    quiet += ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-dev-shm-usage", f"--user-data-dir={place / 'user'}")
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr",
        f"--log-net-log={log}", "--window-size=1100,1400", f"--screenshot={place / 'page.png'}", page.as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert (place / "page.png").stat().st_size > 1000
    asked = re.findall(r'"initiator":"([^"]*)".*?"url":"([^"]+)"', log.read_text(errors="replace"))
    return result.stderr, [url for origin, url in asked if origin != "not an origin"]


def test_it_opens_in_a_browser_without_errors_or_requests(report: tuple[Path, Numbers], tmp_path: Path) -> None:
    printed, asked = opened(report[0], tmp_path)
    assert "CONSOLE" not in printed, printed
    assert [url for url in asked if not url.startswith("data:")] == []
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_the_browser_would_tell_of_errors_and_requests(tmp_path: Path) -> None:
    page = tmp_path / "loud.html"
    page.write_text('<h1>x</h1><img src="http://example.invalid/a.png"><script>console.error("hello")</script>')
    printed, asked = opened(page, tmp_path)
    assert "CONSOLE" in printed and asked == ["http://example.invalid/a.png"]
