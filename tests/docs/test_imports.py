"""The drawing of all imports between rooms."""

from tests.draw_rooms import FOLDER, page, picture


def test_the_drawing_of_imports_is_current() -> None:
    for name, made in (("imports.svg", picture()), ("imports.md", page())):
        assert (FOLDER / name).read_text(encoding="utf-8") == made, f"docs/internals/{name} is old: run scripts/rooms"
