"""The page in a real browser: what it shows, by mouse and by keyboard, wide and narrow, light and dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import persist
from tests.tools.web.browser import Page, browser, find_axe, find_chromium
from tests.tools.web.places import NASTY, add_views, fill, shown

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / "shop"
    fill(made)
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with shown(folder) as url:
        yield url


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(window: Page, url: str) -> Iterator[Page]:
    window.problems.clear()
    window.requests.clear()
    window.look(width=1400)
    window.call("Page.navigate", url="about:blank")
    yield window
    assert window.problems == []
    origin = url.split("/")[2]
    assert [r for r in window.requests if r.split("/")[2:3] != [origin] and not r.startswith(("about:", "data:"))] == []


def rows(page: Page, table: str) -> list[list[str]]:
    found: list[list[str]] = page.evaluate(
        f"[...document.querySelectorAll('#{table} tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return found


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window_and_text_can_be_read(
    page: Page, url: str, tmp_path: Path, width: int, dark: bool
) -> None:
    page.look(width=width, dark=dark)
    for address in (url, f"{url}#/orders?at=53"):
        page.call("Page.navigate", url="about:blank")
        page.open(address)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(CONTRAST) >= 4.5
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 5000


# The least contrast between a text and what is behind it, as WCAG counts it.
CONTRAST = """(() => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (e) => {
        for (; e; e = e.parentElement) {
            const color = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$/.test(color)) return color;
        }
        return "rgb(255, 255, 255)";
    };
    let least = 21;
    for (const e of document.querySelectorAll("h1, h2, th, td, a, dt, dd, p, label")) {
        if (!e.innerText || !e.innerText.trim() || e.className === "skip") continue;
        const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
        least = Math.min(least, (a + 0.05) / (b + 0.05));
    }
    return least;
})()"""


def test_the_list_shows_collections_and_leads_to_them(page: Page, url: str) -> None:
    page.open(url)
    assert [row[0] for row in rows(page, "collections")] == ["<i>strange<i>", "empty", "orders", "shop.items"]
    assert page.evaluate("document.querySelectorAll('#commits rect').length") >= 1
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.fill("#search", "ord")
    page.wait("document.querySelectorAll('#collections tbody tr').length === 1")
    page.settle()
    page.click("#collections a")
    page.wait("document.getElementById('name') && document.getElementById('contents').tBodies[0].rows.length > 1")
    assert page.text("#name") == "orders"
    page.settle()
    page.press("Escape")
    page.wait("document.getElementById('collections')")
    page.settle()


def test_the_picture_shows_runs_keyframes_and_lines(page: Page, url: str) -> None:
    page.open(f"{url}#/orders")
    count = "document.querySelectorAll('#picture {}').length"
    assert page.evaluate(count.format("rect.keyframe")) == 2
    assert page.evaluate(count.format("rect.history, #picture rect.retracts")) == 5
    for kind in ("since", "upper", "hold", "now"):
        assert page.evaluate(count.format(f"line.{kind}")) == 1
    titles = page.evaluate("[...document.querySelectorAll('#picture title')].map((t) => t.textContent)")
    assert "hold nightly-report 25" in titles
    assert "since 20" in titles


def test_time_moves_by_slider_by_keyboard_and_by_number(page: Page, url: str) -> None:
    page.open(f"{url}#/orders?at=53")
    assert page.text("#at") == "53"
    assert page.evaluate("document.getElementById('slider').value") == str((53 - 20) * 1000 // (79 - 20))
    page.evaluate("document.getElementById('slider').focus()")
    page.press("ArrowLeft")
    page.wait("document.getElementById('at').textContent === '40'")
    page.settle()
    page.press("ArrowRight")
    page.wait("document.getElementById('at').textContent === '53'")
    page.settle()
    assert len(rows(page, "changes")) == 40
    page.evaluate(
        "(() => { const s = document.getElementById('slider'); s.value = 0; s.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.getElementById('at').textContent === '20'")
    page.settle()
    assert "cannot be told apart" in page.text("#changes-note")
    assert "Nothing changed" not in page.text("#changes")
    page.fill("#time", "79")
    page.click("#time-form button")
    assert page.text("#at") == "79"
    assert page.evaluate("document.getElementById('follow').checked") is False


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(("time", "says"), [("5", "before since"), ("500", "not before upper"), ("soon", "not a time")])
def test_a_time_that_cannot_be_read_is_explained_above_everything(page: Page, url: str, time: str, says: str) -> None:
    page.open(f"{url}#/orders?at=53")
    page.fill("#time", time)
    page.click("#time-form button")
    assert says in page.text("#error")
    assert page.text("#at") == "53"
    page.problems[:] = [each for each in page.problems if "status of 400" not in each]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(("time", "says"), [("5", "before since"), ("500", "not before upper"), ("abc", "not a time")])
def test_an_address_with_a_time_that_cannot_be_read_says_so_above_the_latest_contents(
    page: Page, url: str, time: str, says: str
) -> None:
    page.open(f"{url}#/orders?at={time}")
    assert says in page.text("#error")
    assert page.text("#at") == "79"
    assert len(rows(page, "contents")) == 50
    assert page.evaluate("document.querySelectorAll('.waits').length") == 0
    page.click("#earlier")
    assert page.text("#at") == "73"
    page.problems[:] = [each for each in page.problems if "status of 400" not in each]


def test_a_collection_that_is_not_there_is_named_and_nothing_else_is_shown(page: Page, url: str) -> None:
    page.open(f"{url}#/nobody")
    assert "no collection 'nobody'" in page.text("#error")
    assert page.text("#main").split("\n") == ["nobody"]
    page.open(f"{url}#/%E0%A4%A")
    assert "URI" in page.text("#error")
    page.problems[:] = [each for each in page.problems if "status of 404" not in each]


def test_a_window_that_is_resized_before_there_is_a_picture_is_no_error(page: Page, url: str) -> None:
    page.call("Fetch.enable", patterns=[{"urlPattern": "*api/collection?*"}])
    page.call("Page.navigate", url=f"{url}#/orders")
    page.wait("document.getElementById('picture')")
    page.evaluate(
        "(() => { const later = window.setTimeout; window.setTimeout = (what) => what(); "
        "window.dispatchEvent(new Event('resize')); window.setTimeout = later; })()"
    )
    page.call("Fetch.disable")
    page.settle()
    assert page.text("#at") == "79"


def test_a_key_is_found_with_its_whole_history(page: Page, url: str) -> None:
    page.open(f"{url}#/orders?at=53")
    page.fill("#key", "165")
    page.click("#key-form button")
    assert rows(page, "contents") == [["165", "paid", "5.0", "1"]]
    page.click("#key-history")
    assert [(row[1], row[8]) for row in rows(page, "history")] == [
        ("new", "day 4"),
        ("new", "day 5"),
        ("paid", "day 5"),
    ]
    page.click("#key-clear")
    assert len(rows(page, "contents")) == 50
    page.click("#rows-after")
    assert rows(page, "contents")[0][0] == "50"


def test_rows_are_filtered_and_sorted_and_the_address_says_all_of_it(page: Page, url: str) -> None:
    page.open(f"{url}#/orders?at=53")
    page.fill("#where", "amount > 17")
    page.click("#where-form button")
    assert {row[2] for row in rows(page, "contents")} >= {"18.0", "39.0"}
    for _ in range(2):  # Upwards, then downwards.
        page.click("#contents th:nth-child(3) button")
    assert rows(page, "contents")[0][2] == "39.0"
    assert (
        page.evaluate("document.querySelector('#contents th:nth-child(3)').getAttribute('aria-sort')") == "descending"
    )
    page.fill("#first", "43")
    page.fill("#second", "53")
    page.click("#compare-form button")
    page.fill("#key", "165")
    page.click("#key-history")
    address = page.evaluate("location.href")
    before = {table: rows(page, table) for table in ("contents", "history", "who", "come")}
    assert all(before.values())
    page.call("Page.navigate", url="about:blank")
    page.open(address)
    assert {table: rows(page, table) for table in before} == before
    assert (
        page.evaluate(
            "[...document.querySelectorAll('.downloads a')].map((a) => new URL(a.href).searchParams.get('where'))"
        )
        == ["amount > 17"] * 2
    )
    page.fill("#where", "colour = 1")
    page.click("#where-form button")
    assert "colour" in page.text("#error")
    page.click("#rows-after")
    assert page.evaluate("document.getElementById('error').hidden")  # What was refused is forgotten.
    page.problems[:] = [each for each in page.problems if "status of 400" not in each]


def test_the_slider_says_its_value_and_where_it_would_go(page: Page, url: str) -> None:
    page.open(f"{url}#/shop.items?at=1795248240")
    slider = "document.getElementById('slider')"
    assert page.evaluate(f"{slider}.getAttribute('aria-valuetext')") == "2026-11-21T08:04:00Z"
    assert rows(page, "changes") == [["north", "1", "4", "2026-11-21T08:04:00Z", "1"]]
    page.evaluate(f"(() => {{ {slider}.value = 0; {slider}.dispatchEvent(new Event('input')); }})()")
    assert page.text("#slider-at") == "2026-11-21T08:00:00Z"
    assert page.text("#at") == "2026-11-21T08:04:00Z"  # It was not let go yet.


@pytest.mark.costly("a browser asks six times, and draws each answer")
def test_sql_is_asked_as_of_the_slider_sorted_drawn_and_sent_to_somebody(page: Page, url: str) -> None:
    page.open(f"{url}#sql")
    assert "orders" in page.text("#names")
    page.fill("#query", "SELECT status, count(*) AS n FROM orders GROUP BY status")
    page.evaluate("document.getElementById('query').focus()")
    page.click("#query-form button")
    assert sorted(rows(page, "answer")) == [["new", "180"], ["paid", "140"]]
    assert page.evaluate("document.getElementById('query-slider').getAttribute('aria-valuetext')") == "79"
    page.evaluate("document.getElementById('query-slider').focus()")
    page.press("ArrowLeft")
    page.wait("document.getElementById('answer-note').textContent.includes('as of 78')")
    page.settle()
    page.evaluate(
        "(() => { const s = document.getElementById('query-slider'); s.value = 0; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    page.wait("document.getElementById('answer-note').textContent.includes('as of 20')")
    page.settle()
    page.click("#answer th:nth-child(2) button")
    ascending = [int(row[1]) for row in rows(page, "answer")]
    assert ascending == sorted(ascending)
    page.evaluate(
        "(() => { const x = document.getElementById('chart-x'); x.value = 'as of'; "
        "x.dispatchEvent(new Event('change')); })()"
    )
    page.settle()
    assert page.evaluate("document.querySelectorAll('#chart polyline').length") == 2
    names = page.evaluate("[...document.querySelectorAll('#chart text.name')].map((t) => t.textContent)")
    assert sorted(names) == ["new", "paid"]
    address, before = page.evaluate("location.href"), rows(page, "answer")
    page.call("Page.navigate", url="about:blank")
    page.open(address)
    assert rows(page, "answer") == before
    assert page.evaluate("document.querySelectorAll('#chart polyline').length") == 2
    page.click("#query-latest")
    assert "as of 79" in page.text("#answer-note")
    page.fill("#query", "DELETE FROM orders")
    page.click("#query-form button")
    assert "only reads" in page.text("#error")
    page.problems[:] = [each for each in page.problems if "status of 400" not in each]


def test_health_shows_views_followers_and_who_holds_history(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    add_views(tmp_path)
    with shown(tmp_path) as url:
        page.open(f"{url}#health")
        assert {row[0] for row in rows(page, "views-table")} == {"paid", "total"}
        assert ["orders", "nightly-report", "25", "no"] in [[*r[:2], *r[3:]] for r in rows(page, "holds-table")]
        assert [row[:3] for row in rows(page, "followers-table")] == [["nightly-report", "orders", "25"]]
        assert "persist compact" in page.text("#due-table")
        assert page.evaluate("document.querySelectorAll('.waits').length") == 0
        page.click("#views-table a")
        page.wait("document.getElementById('facts')")
        page.settle()
        assert page.text("#facts").startswith("kind\nview")
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_health_says_why_a_view_came_no_further_in_whole(page: Page, tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("words", key={"k": str}).write([("ann", None)]).result()
        with pytest.raises(persist.errors.OperatorFailed):
            client.create_view("numbers", "SELECT CAST(k AS INTEGER) AS n FROM words").refresh()
    with shown(tmp_path) as url:
        page.look(width=400)
        page.open(f"{url}#health")
        assert "numbers failed at 2" in page.text("#views-note")
        assert "casting from source column" in page.text("#views-note")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_a_long_name_leaves_room_for_the_columns_of_a_narrow_window(page: Page, tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        long = client.create_or_load("a_very_long_name." * 8 + "x" * 60, key={"k": int}, timeline="ms")
        long.write([(1, None)]).result()
    with shown(tmp_path) as url:
        page.look(width=400)
        for view, cell in (("", "#collections td:last-child"), ("#health", "#lagging-table td:nth-child(3)")):
            page.call("Page.navigate", url="about:blank")
            page.open(f"{url}{view}")
            right = page.evaluate(f"document.querySelector('{cell}').getBoundingClientRect().right")
            assert right <= 400, cell
            if not view:
                assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.scroll'))")
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


@pytest.mark.costly("axe-core examines seven views in two widths and two colour schemes")
def test_axe_finds_nothing(page: Page, tmp_path: Path) -> None:
    axe = find_axe()
    if axe is None:
        pytest.skip("no axe-core was found: npm install axe-core, and PERSIST_TEST_AXE=…/axe.min.js")
    fill(tmp_path)
    add_views(tmp_path)
    views = (
        "", "#/orders?at=53&key=165&history=165&first=43&second=53", "#/shop.items", "#/total", "#health", "#/empty",
        "#sql?q=SELECT+status,+count(*)+AS+n+FROM+orders+GROUP+BY+status&x=as+of&y=n",
    )  # fmt: skip
    with shown(tmp_path) as url:
        for width, dark in ((1280, False), (400, True)):
            page.look(width=width, dark=dark)
            for view in views:
                page.call("Page.navigate", url="about:blank")
                page.open(f"{url}{view}")
                page.call("Runtime.evaluate", expression=axe.read_text(encoding="utf-8"))
                found = page.evaluate(
                    "axe.run(document).then((r) => "
                    "r.violations.map((v) => [v.id, v.nodes.map((n) => n.html).slice(0, 3)]))"
                )
                assert found == [], (view, width, dark)
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_two_times_stand_side_by_side(page: Page, url: str) -> None:
    page.open(f"{url}#/orders")
    page.fill("#first", "52")
    page.fill("#second", "53")
    page.click("#compare-form button")
    assert {row[1] for row in rows(page, "gone")} == {"new"}
    assert {row[1] for row in rows(page, "come")} == {"paid"}
    assert page.text("#compare-note") == "20 records differ. Values differ in status (20)."
    assert {(row[1], row[2], row[3], row[7]) for row in rows(page, "who")} == {("update", "status", "53", "day 5")}


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("unit", "time", "moment"),
    [
        ("s", "1795248240", "2026-11-21T08:04:00Z"),
        ("ms", "1795248240001", "2026-11-21T08:04:00.001Z"),
        ("us", "1795248240000010", "2026-11-21T08:04:00.00001Z"),
        ("ns", "1795248240000000001", "2026-11-21T08:04:00.000000001Z"),
    ],
)
def test_moments_are_exact(page: Page, url: str, unit: str, time: str, moment: str) -> None:
    page.open(f"{url}#/shop.items")
    moments = "import(new URL('moments.js', document.baseURI))"
    assert page.evaluate(f"{moments}.then((module) => module.momentOf('{time}', '{unit}'))") == moment


def test_times_that_are_moments_are_typed_as_such(page: Page, url: str) -> None:
    page.open(f"{url}#/shop.items?at=1795248240")
    values = page.evaluate("['time', 'from', 'until', 'second'].map((id) => document.getElementById(id).value)")
    assert values == ["2026-11-21T08:04:00Z", "2026-11-21T08:04:00Z", "2026-11-21T08:04:01Z", "2026-11-21T08:04:00Z"]
    assert [row[2] for row in rows(page, "changes")] == ["4"]
    page.fill("#first", "2026-11-21T08:01:00Z")
    page.click("#compare-form button")
    assert rows(page, "gone") == [["Nothing."]]
    assert [row[2] for row in rows(page, "come")] == ["2", "3", "4"]


def test_a_time_is_shown_as_a_moment_or_as_a_number_and_never_as_both(page: Page, url: str) -> None:
    for view in ("#/", "#/shop.items", "#health"):
        page.call("Page.navigate", url="about:blank")
        page.open(f"{url}{view}")
        shown = page.evaluate("document.querySelector('main').innerText").partition("How it is read")[0]
        assert "17952482" not in shown, view
        assert "2026-11-21" in shown, view
    page.open(f"{url}#/orders")
    assert "1970-" not in page.evaluate("document.querySelector('main').innerText")


def test_names_and_values_are_shown_and_never_become_markup(page: Page, url: str) -> None:
    page.open(f"{url}#/{'%3Ci%3Estrange%3Ci%3E'}")
    assert page.text("#name") == "<i>strange<i>"
    [[shown_value, _]] = rows(page, "contents")
    assert shown_value == NASTY.replace("\u202e", "\\u202e").replace("\x1b", "\\u001b")
    assert page.evaluate("document.querySelectorAll('#main i, #main b, #main img, #main u').length") == 0
    assert page.evaluate("window.hacked") is None


def test_an_empty_collection_says_that_nothing_can_be_read(page: Page, url: str) -> None:
    page.open(f"{url}#/empty")
    assert "Nothing is sealed yet" in page.text("#contents")
    assert page.evaluate("document.getElementById('error').hidden")


def test_what_is_not_there_yet_is_loading_and_what_does_not_come_is_said(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    with shown(tmp_path) as url:
        page.call("Fetch.enable", patterns=[{"urlPattern": "*api/contents*"}])
        page.call("Page.navigate", url=f"{url}#/orders")
        page.wait("document.querySelectorAll('#picture rect').length")
        for part in ("#contents", "#changes", "#plan"):
            assert page.text(part).endswith("Loading…"), part
        assert page.evaluate("document.getElementById('main').getAttribute('aria-busy')") == "true"
        page.call("Fetch.disable")
        page.settle()
        assert len(rows(page, "contents")) == 50
        assert page.evaluate("document.querySelectorAll('.waits').length") == 0
        assert page.evaluate("[...document.querySelectorAll('#sides')].map((e) => e.offsetHeight)") == [0]
    page.click("#rows-after")
    assert "does not answer" in page.text("#error")
    page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_an_answer_for_another_collection_is_not_shown(page: Page, url: str) -> None:
    page.call("Fetch.enable", patterns=[{"urlPattern": "*api/contents?name=orders*"}])
    page.call("Page.navigate", url=f"{url}#/orders")
    page.wait("document.querySelectorAll('#picture rect').length")
    page.evaluate("location.hash = '#/shop.items'")
    page.wait("document.getElementById('contents').tHead.textContent.includes('stock')")
    page.call("Fetch.disable")
    page.settle()
    assert page.text("#name") == "shop.items"
    assert "stock" in page.text("#contents thead")


def test_the_page_follows_the_log(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    with shown(tmp_path) as url:
        page.open(f"{url}#/orders")
        page.wait("/record/.test(document.getElementById('live').textContent)")
        assert page.text("#at") == "79"
        with persist.open(tmp_path) as client:
            client.load("orders").seal(96).result()
        page.wait("document.getElementById('at').textContent === '95'")
        page.settle()
        assert page.evaluate("document.getElementById('unsealed').hidden")
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_contents_and_changes_are_shown_by_an_older_schema(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    with shown(tmp_path) as url:
        page.open(f"{url}#/orders")
        assert page.evaluate("document.getElementById('versions').hidden")
        with persist.open(tmp_path) as client:
            client.load("orders").evolve(add={"colour": str}, defaults={"colour": "blue"})
        page.wait("document.querySelector('#contents thead').innerText.includes('colour')")
        page.settle()
        assert not page.evaluate("document.getElementById('versions').hidden")
        assert {row[-2] for row in rows(page, "contents")} == {"blue"}
        page.evaluate("document.getElementById('schema').value = '1'")
        page.evaluate("document.getElementById('schema').dispatchEvent(new Event('change'))")
        page.settle()
        assert "colour" not in page.text("#contents thead") + page.text("#changes thead")
        assert rows(page, "contents")
        with persist.open(tmp_path) as client:
            client.load("orders").seal(96).result()
        page.wait("document.getElementById('at').textContent === '95'")
        page.settle()
        assert "colour" not in page.text("#contents thead")  # What was chosen stays chosen.
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


def test_views_are_drawn_with_what_they_read(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    add_views(tmp_path)
    with shown(tmp_path) as url:
        page.open(url)
        assert page.evaluate("document.querySelectorAll('#lineage rect.view').length") == 2
        assert page.evaluate("document.querySelectorAll('#lineage path.edge').length") == 3
        page.evaluate("document.querySelector('#lineage a:last-of-type').dispatchEvent(new MouseEvent('click'))")
        page.wait("document.getElementById('sql') && !document.getElementById('sql').hidden")
        page.settle()
        assert "FROM paid" in page.text("#sql")
        page.click("#show-dataflow")
        texts = page.evaluate("[...document.querySelectorAll('#dataflow text')].map((t) => t.textContent)")
        assert {"read orders", "view paid", "view total"} <= {*texts}
        assert page.evaluate("document.querySelectorAll('#dataflow rect.keeps').length") == 1
        assert page.evaluate("document.querySelectorAll('#dataflow path.edge').length") >= 6
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


# The edges that run behind a node, as "path at x, y"; a point every two pixels is looked at.
BEHIND = """((box) => {
    const boxes = [...box.querySelectorAll("rect")].map((r) => r.getBBox()), found = [];
    for (const path of box.querySelectorAll("path.edge"))
        for (let at = 0; at < path.getTotalLength(); at += 2) {
            const { x, y } = path.getPointAtLength(at);
            if (boxes.some((b) => x > b.x + 1 && x < b.x + b.width - 1 && y > b.y + 1 && y < b.y + b.height - 1))
                found.push(`${path.getAttribute("d")} at ${x}, ${y}`);
        }
    return found;
})"""


@pytest.mark.thorough
def test_no_edge_of_a_graph_runs_behind_a_node(page: Page, tmp_path: Path) -> None:
    fill(tmp_path)
    add_views(tmp_path)
    with persist.open(tmp_path) as client:
        client.create_view(
            "both", "SELECT order_id, status, paid.amount FROM orders JOIN paid USING (order_id)"
        ).close()
    with shown(tmp_path) as url:
        page.open(url)
        assert page.evaluate("document.querySelectorAll('#lineage path.edge').length") == 5
        assert page.evaluate(f"{BEHIND}(document.getElementById('lineage'))") == []
        page.open(f"{url}#/both")
        page.click("#show-dataflow")
        assert page.evaluate("document.querySelectorAll('#dataflow path.edge').length") >= 6
        assert page.evaluate(f"{BEHIND}(document.getElementById('dataflow'))") == []
        assert page.evaluate(f"import(new URL('graphs.js', document.baseURI)).then(({RANDOM_GRAPHS})({BEHIND}))") == []
        page.call("Page.navigate", url="about:blank")
    page.requests.clear()
    page.problems.clear()


# Draws graphs whose edges lead over any number of layers, and also back; returns what is wrong with them.
RANDOM_GRAPHS = """((behind) => ({ drawDataflow }) => {
    let seed = 7;
    const random = (n) => ((seed = (seed * 1103515245 + 12345) % 2147483648), Math.floor((seed / 2147483648) * n));
    const found = [], box = document.getElementById("dataflow");
    for (let graph = 0; graph < 60; graph++) {
        const operators = [];
        for (let i = 0; i < 1 + random(25); i++) {
            const inputs = i ? [...new Set(Array.from({ length: random(4) }, () => random(i)))] : [];
            const depth = Math.max(0, ...inputs.map((each) => operators[each].depth + 1));
            operators.push({ title: `node ${i}`, kind: "map", updates: 1, rate: null, kept_bytes: 0, inputs, depth });
        }
        if (graph % 3 === 0 && operators.length > 3) operators[1].inputs.push(operators.length - 1);
        drawDataflow(box, operators, String);
        found.push(...behind(box));
        const svg = box.firstChild.getBBox(), size = box.firstChild.viewBox.baseVal;
        const right = svg.x + svg.width, bottom = svg.y + svg.height;
        if (svg.x < 0 || svg.y < 0 || right > size.width || bottom > size.height) found.push("cut off");
        const boxes = [...box.querySelectorAll("rect")].map((r) => r.getBBox());
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
            if (Math.abs(a.x - b.x) < a.width && Math.abs(a.y - b.y) < a.height) found.push("nodes lie on each other");
        }));
    }
    return found;
})"""
