"""The page in a real browser: what its script does, and what it must not do."""

import json
import shutil
from collections.abc import Iterator

import pytest
from synthetic_runs import write_comparison

from pilot_tal.results import build_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
PROGRAMS = (shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver"))


class Browser:
    """Headless Chromium with real pointer events."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location, driver = PROGRAMS
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.chrome.service.Service(driver)
        self.driver = webdriver.Chrome(options=options, service=service)

    def open(self, page, width=1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(page.as_uri())

    def run(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def click(self, element):
        """Moves there and presses, as a hand does."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        x, y, width, height = self.box(element)
        place = {"x": x + width / 2, "y": y + height / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **place})

    def box(self, element):
        return self.run("const b = arguments[0].getBoundingClientRect(); return [b.x, b.y, b.width, b.height]", element)

    def find(self, css):
        return self.driver.find_elements("css selector", css)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if None in PROGRAMS:
        pytest.skip("chromium and chromedriver are not installed")
    started = Browser()
    yield started
    started.driver.quit()


@pytest.fixture(params=["demo_report", "mixed_report"])
def report(request):
    return request.getfixturevalue(request.param)


def test_nothing_fails_and_nothing_is_loaded_from_outside(browser, report):
    browser.driver.get_log("browser"), browser.driver.get_log("performance")
    browser.open(report)
    assert browser.driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert report.as_uri() in asked
    assert {url for url in asked if not url.startswith("data:image/png")} == {report.as_uri()}


@pytest.mark.parametrize("width", [390, 1280])
def test_page_never_scrolls_sideways(browser, report, width):
    browser.open(report, width)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    shown, whole = browser.run("const e = document.documentElement; return [e.clientWidth, e.scrollWidth]")
    assert whole <= shown <= width


def test_on_a_phone_a_table_keeps_its_first_column_in_sight(browser, mixed_report):
    browser.open(mixed_report, 390)
    (region,) = browser.find("main > .scroll[aria-label^='All groups']")
    assert browser.run("arguments[0].scrollLeft = 1000; return arguments[0].scrollLeft", region) > 100
    left, _, width, _ = browser.box(region.find_element("css selector", "td"))
    assert left == browser.box(region)[0] and width < 0.5 * 390


@pytest.mark.parametrize("script", [True, False])
def test_without_the_script_everything_can_be_read(browser, demo_report, tmp_path, script):
    text = demo_report.read_text(encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text(text if script else text[: text.rindex("<script>")] + "</body></html>", encoding="utf-8")
    browser.open(page)
    assert bool(browser.find(".search input")) == bool(browser.find("th button")) == script
    assert len(browser.find("figure svg")) == len(browser.find("figure")) > 10
    names = [cell.get_attribute("textContent") for cell in browser.find("table.classes td.name:first-child")]
    assert len(names) == 50 and names[0] == "class 000"
    assert "A_Tail of TAL" in browser.find("header")[0].text


def column(browser, table, index):
    rows = "return [...arguments[0].tBodies[0].rows].map((r) => r.cells[arguments[1]].firstChild.textContent)"
    return browser.run(rows, table, index)


def test_click_on_a_column_title_sorts_the_table(browser, mixed_report):
    browser.open(mixed_report)
    (table,) = browser.find("main > .scroll[aria-label^='All groups'] table")
    titles = [head.text for head in table.find_elements("css selector", "th")]
    change = "Change of A_Tail (95 % interval)"
    for title, first in (("A_Tail", "descending"), ("Loss", "ascending"), (change, "descending")):
        index, before = titles.index(title), column(browser, table, titles.index(title))
        head = table.find_elements("css selector", "th")[index]
        kept = column(browser, table, 0), before
        for turn in (first, "ascending" if first == "descending" else "descending"):
            browser.click(head.find_element("css selector", "button"))
            assert head.get_attribute("aria-sort") == turn
            shown = column(browser, table, index)
            assert sorted(shown) == sorted(before)
            numbers = [float(text.replace("−", "-")) for text in shown if text != "–"] if title != "Loss" else []
            assert numbers == sorted(numbers, reverse=turn == "descending")
            assert shown[len(shown) - shown.count("–") :] == ["–"] * shown.count("–")
        if title == "Loss":
            texts = browser.run("return arguments[0].sort((a, b) => b.localeCompare(a, 'en', {numeric: true}))", before)
            assert shown == texts
        browser.click(head.find_element("css selector", "button"))
        assert head.get_attribute("aria-sort") is None
        assert (column(browser, table, 0), column(browser, table, index)) == kept


def test_search_hides_other_classes(browser, demo_report):
    browser.open(demo_report)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    (field,) = browser.find(".search input")
    field.send_keys("LASS 04")
    shown = [row.text.split()[1] for row in browser.find("table.classes tbody tr") if row.is_displayed()]
    assert sorted(shown) == [f"04{i}" for i in range(10)]
    field.clear()
    field.send_keys("nowhere")
    assert not any(row.is_displayed() for row in browser.find("table.classes tbody tr"))


def test_names_that_are_html_stay_text(browser, tmp_path):
    evil = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<b>bold</b>", "'\"&amp;<!--"]
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    write_comparison(tmp_path, seeds=(1,), class_names=evil, **small)
    browser.open(build_report([tmp_path], tmp_path / "report"))
    scripts = len(browser.find("script"))
    names = [cell.get_attribute("textContent") for cell in browser.find("table.classes td.name:first-child")]
    assert sorted(names) == sorted(evil)
    assert not browser.find("table img, table b")
    assert len(browser.find("script")) == scripts and browser.driver.get_log("browser") == []
