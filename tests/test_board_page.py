"""The page of a board in a browser: it grows, keeps what its reader did, and says what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from board_pages import Pages, begin, finish
from browser import Browser, Page
from store_plans import claim_next, plan_of, trained

from ablate.board import growth, watch
from ablate.journal import Journal
from ablate.store import Database, ingest, owners, register

PLAN = plan_of(levels=("serial", "parallel", "no-skip"), seeds=(0, 1, 2), steps=100)


@pytest.fixture
def pages(db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    for module, name in ((watch, "EVERY"), (watch, "PAUSE"), (growth, "PAUSE")):
        monkeypatch.setattr(module, name, 0.0)
    pages = Pages(db.path)
    yield pages
    pages.close()


def until(page: Page, condition: str) -> None:
    """Wait for what a page is to show."""
    end = time.monotonic() + 60
    while not page.value(condition):
        assert time.monotonic() < end, (condition, page.problems())
        time.sleep(0.05)


def shown(page: Page, part: str) -> str:
    text: str = page.value(f"document.querySelector('#part-{part}').innerText")
    return text


def test_the_page_grows_and_keeps_what_its_reader_did(
    db: Database, pages: Pages, chromium: Browser
) -> None:
    study_id = register.register(db, PLAN)
    with owners.Owner.here(db) as owner:
        first, second, *_ = claim_next(db, study_id, owner, 5)
        for claim in (first, second):
            begin(claim, [10, 20])
        finish(second, "failed", "Traceback\n  one\nValueError: no loss")
        for claim in (first, second):
            ingest.ingest(db, claim.attempt_id)
        with chromium.page(pages.server.address) as page:
            until(page, "!document.querySelector('#explore').hidden")
            assert page.value("location.search") == ""  # the token is not in the address
            assert "20/100" in shown(page, "training") and "1 of 9" in shown(page, "progress")
            page.click("#part-troubles summary")
            page.type("#explore-filter", "serial")
            with Journal(first.journal) as journal:
                journal.append("metrics", steps=[60], series={"loss": [0.15]})
            ingest.ingest(db, first.attempt_id)
            until(page, "document.querySelector('#part-training').innerText.includes('60/100')")
            until(page, "ablateExplore.state.data.series[0].curves.get(1).values.at(-1) === 0.15")
            assert "one" in shown(page, "troubles")  # it is still open
            assert page.value("document.querySelector('#explore-filter').value") == "serial"
            db.path.rename(db.path.with_suffix(".away"))
            until(page, "!document.querySelector('#error').hidden")
            assert "does not exist" in page.value("document.querySelector('#error').innerText")
            assert "60/100" in shown(page, "training")
            db.path.with_suffix(".away").rename(db.path)
            until(page, "document.querySelector('#error').hidden")
            assert page.problems() == []
            asked = {address.split("/")[2] for address in page.requests()}
            assert asked == {f"127.0.0.1:{pages.port}"}
            conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            page.call("Network.emulateNetworkConditions", offline=True, **conditions)
            until(page, "document.querySelector('#pulse').innerText.includes('does not answer')")
            page.call("Network.emulateNetworkConditions", offline=False, **conditions)
            until(page, "document.querySelector('#pulse').innerText.startsWith('Updated')")


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_nothing_overflows_and_nothing_is_complained_of(
    db: Database, pages: Pages, chromium: Browser, width: int, dark: bool
) -> None:
    trained(db, plan_of("other", ("serial", "no-skip"), seeds=(7,)))
    study_id = register.register(db, PLAN)
    with owners.Owner.here(db) as owner:
        for claim in claim_next(db, study_id, owner, 7):
            begin(claim, [10, 20, 30])
            if claim.run.seed < 2:
                finish(claim, "complete" if claim.run_id % 2 else "failed", f"{'word' * 90}\nx")
            ingest.ingest(db, claim.attempt_id)
        with chromium.page(f"{pages.server.address}&study=wiring", width=width, dark=dark) as page:
            until(page, "!document.querySelector('#explore').hidden")
            page.click("#part-troubles summary")
            page.click("#part-cells summary")
            assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0
            heights = page.value(
                "Object.fromEntries([...document.querySelectorAll('[id^=part-]')]"
                ".map((one) => [one.id.slice(5), one.getBoundingClientRect().height]))"
            )
            assert {name for name, height in heights.items() if not height} == {"decisions"}
            assert page.problems() == []
            assert page.faults() == []
            page.click("#part-studies a[href='?study=other']")
            until(page, "document.body?.dataset.study === 'other'")
            until(page, "document.querySelector('#part-progress').innerText.includes('2 of 2')")
