"""The slider of a notebook, and the notebook among the examples: its cells run one after the other in IPython."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import persist
from persist import slider
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S
from tests.tools.web.browser import browser, find_chromium
from tests.tools.web.places import NASTY, fill

pytest.importorskip("anywidget")
CHROMIUM = find_chromium()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    fill(tmp_path / "shop")
    with persist.open(tmp_path / "shop", mode="read") as client:
        yield client


def test_a_slider_needs_no_package_of_the_page() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from persist import slider"
    assert not subprocess.run([*forked_python(), "-c", code], check=False, timeout=WAIT_S).returncode


def test_a_slider_shows_what_was_there_and_what_changed(client: persist.Client) -> None:
    slid = slider(client.load("orders"), as_of=53)
    assert slid.shown["as_of"] == "53"
    assert (len(slid.shown["rows"]), len(slid.changed["rows"])) == (50, 40)
    slid.at = "20"
    assert (slid.shown["as_of"], slid.changed) == ("20", {})
    slid.at = "5"
    assert "before since" in slid.error
    assert slid.shown["as_of"] == "20"
    slid.at = "soon"
    assert "not a time" in slid.error
    slid.at = "79"
    assert slid.error == ""


def test_a_slider_that_looks_again_follows_the_latest_time_until_another_one_is_chosen(tmp_path: Path) -> None:
    with persist.open(tmp_path) as writer:
        orders = writer.create_or_load("orders", key={"k": int})
        orders.write([(1, None)]).result()
        slid = slider(orders, every_s=0.5)
        assert (slid.every_s, slid.at, len(slid.shown["rows"])) == (0.5, "0", 1)
        orders.write([(2, None)]).result()
        slid._handle_message(slid, "refresh", [])
        assert (slid.at, len(slid.shown["rows"])) == ("1", 2)
        slid.at = "0"
        orders.write([(3, None)]).result()
        slid._handle_message(slid, "refresh", [])
        assert (slid.at, slid.told["latest"], len(slid.shown["rows"])) == ("0", "2", 1)
    for wrong in (0, True, float("nan"), -1):
        with pytest.raises(persist.InvalidUsage, match="not a number of seconds"):
            slider(orders, every_s=wrong)


def test_a_slider_of_what_nobody_can_read_yet_is_empty(client: persist.Client) -> None:
    assert slider(client.load("empty")).shown == {}


def test_a_collection_of_a_notebook_with_the_extension_is_a_slider_that_looks_again(tmp_path: Path) -> None:
    code = (
        "import json, persist\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "with persist.open('memory://x') as client:\n"
        "    client.write('orders', [{'k': 1}], key=['k'])\n"
        "    view = client.create_view('all', 'SELECT k FROM orders')\n"
        "    before = shell.display_formatter.format(client.load('orders'))[0]\n"
        "    shell.run_line_magic('load_ext', 'persist')\n"
        "    found = [shell.display_formatter.format(each)[0] for each in (client.load('orders'), view)]\n"
        "    print(json.dumps([sorted(each) for each in (before, *found)]))\n"
    )
    done = subprocess.run([*forked_python(), "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, *found = json.loads(done.stdout)
    assert before == ["text/html", "text/plain"]
    assert found == [["application/vnd.jupyter.widget-view+json", *before]] * 2


def test_without_the_package_the_extra_is_named(client: persist.Client) -> None:
    code = (
        "import sys; sys.modules['anywidget'] = None\n"
        "import persist\n"
        "from persist import slider\n"
        "with persist.open('memory://x') as client:\n"
        "    try: slider(client.create_or_load('a', key={'k': int}))\n"
        "    except persist.InvalidUsage as error: print(error)\n"
    )
    done = subprocess.run([*forked_python(), "-c", code], capture_output=True, text=True)
    assert "pip install 'anywidget>=0.9'" in done.stdout, done.stderr


RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]))
        done.raise_error()
        if done.result is not None:
            shell.display_formatter.format(done.result)
            print("RESULT", type(done.result).__name__)
"""


def test_each_cell_of_the_example_runs(tmp_path: Path) -> None:
    path = ROOT / "examples" / "through_time.ipynb"
    done = subprocess.run([*forked_python(), "-c", RUN, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found[0] == "Collection"
    assert found[-1] == "Slider"


def test_the_example_is_kept_without_outputs() -> None:
    for cell in json.loads((ROOT / "examples" / "through_time.ipynb").read_text())["cells"]:
        assert not cell.get("outputs")


HOST = """<!doctype html><meta charset="utf-8"><style>CSS</style><div id="el"></div><script type="module">
ESM_URL
const state = STATE;
const model = {
  get: (name) => state[name],
  set: (name, value) => { state[name] = value; },
  on: () => {},
  save_changes: () => { document.title = state.at; },
};
const found = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
found.default.render({ model, el: document.getElementById("el") });
document.body.dataset.view = "notebook";
document.body.dataset.busy = "no";
</script>"""


@pytest.mark.outside
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found: apt-get install chromium")
def test_a_slider_is_drawn_with_names_as_text_and_tells_what_was_chosen(client: persist.Client, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    strange = slider(client.load("<i>strange<i>"))
    orders = slider(client.load("orders"), as_of=53)
    with browser(CHROMIUM, tmp_path / "profile") as page:
        for each in (strange, orders):
            names = ("told", "shown", "changed", "error", "at")
            state = json.dumps({name: getattr(each, name) for name in names}).replace("<", "\\u003c")
            source = f"const source = {json.dumps(each._esm)};".replace("</", "<\\/")
            html = HOST.replace("CSS", each._css).replace("ESM_URL", source).replace("STATE", state)
            (tmp_path / "host.html").write_text(html, encoding="utf-8")
            page.look(width=1000)
            page.open((tmp_path / "host.html").as_uri())
            if each is strange:
                assert page.evaluate("document.querySelectorAll('#el i, #el b, #el img').length") == 0
                assert page.text(".contents td") == NASTY.replace("\u202e", "\\u202e").replace("\x1b", "\\u001b")
        assert page.evaluate("document.querySelectorAll('#el rect.keyframe').length") == 2
        assert len(page.text(".contents").splitlines()) > 40
        page.evaluate("document.querySelector('#el input').value = 0")
        page.evaluate("document.querySelector('#el input').dispatchEvent(new Event('change'))")
        page.screenshot(tmp_path / "slider.png")
        assert page.evaluate("document.title") == "20"
        assert page.problems == []
