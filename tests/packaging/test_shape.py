"""The counting functions of `scripts/shape.py`, on small made-up sources."""

from __future__ import annotations

from textwrap import dedent

import pytest

from scripts.shape import SOURCE as PACKAGE
from scripts.shape import (
    Span,
    circles,
    code_lines,
    describe_circle,
    duplicates,
    folder_lengths,
    import_graph,
    places,
    private_reads,
    reading_path,
    sources,
    visits,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ('"""What it is,\nin two lines."""\n\n# A comment.\nx = 1  # counted\n', 1),
        ('def f():\n    """Doc."""\n    return (\n        1,\n    )\n', 4),
        ('class C:\n    """Doc."""\n\n    x = """text\n\n    that is data"""\n', 4),
        ('x = 1\n"""A note on x is no docstring of a module, class or function."""\n', 2),
    ],
)
def test_lines_of_code_are_those_with_neither_comment_nor_docstring_only(text: str, expected: int) -> None:
    assert code_lines(text) == expected


def test_a_folder_is_as_long_as_its_own_files() -> None:
    files = {"a/one.py": "x\n" * 3, "a/two.py": "x\n", "a/b/three.py": "x\n" * 9}
    assert folder_lengths(files) == {"a": 4, "a/b": 9}


def test_a_circle_is_found_through_functions_and_type_checking() -> None:
    files = {
        "a.py": "import p.b",
        "b.py": "def late() -> None:\n    from p import c",
        "c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import Thing",
        "d.py": "from p.a import Thing\nimport json",
    }
    graph = import_graph(files, "p")
    assert graph == {"p.a": {"p.b": 1}, "p.b": {"p.c": 2}, "p.c": {"p.a": 3}, "p.d": {"p.a": 1}}
    assert circles(graph) == [["p.a", "p.b", "p.c"]]
    assert describe_circle(["p.a", "p.b", "p.c"], graph).splitlines() == [
        "A circle of 3 modules:",
        "    p.a:1 imports p.b",
        "    p.b:2 imports p.c",
        "    p.c:3 imports p.a",
    ]


def test_a_package_counts_as_a_module_and_a_module_is_no_circle_by_itself() -> None:
    files = {"q/__init__.py": "from p.q.a import x", "q/a.py": "from p.q import y\nfrom p.q.a import x"}
    assert circles(import_graph(files, "p")) == [["p.q", "p.q.a"]]
    assert circles({"p.a": {"p.b": 1}, "p.b": {}, "p.c": {"p.b": 1, "p.a": 2}}) == []


def test_two_circles_are_told_apart() -> None:
    graph = {"a": {"b": 1}, "b": {"a": 1, "c": 2}, "c": {"d": 1}, "d": {"c": 1}}
    assert circles(graph) == [["a", "b"], ["c", "d"]]


SAME = "".join(f"x{number} = {number}\n" for number in range(6))


def test_the_same_lines_are_found_however_they_are_spaced_and_commented() -> None:
    spaced = "import json\n\n" + SAME.replace("x3", "# A comment.\n\n)\nx3").replace(" = ", "  =  ")
    files = {"a.py": "first = 1\n" + SAME + "last = 1\n", "b.py": spaced.replace(")\n", ""), "c.py": SAME[:-7]}
    (same,) = duplicates(files)
    assert same == (6, Span("a.py", 2, 7), Span("b.py", 3, 10))


def test_a_longer_run_is_one_and_a_third_place_is_counted_once() -> None:
    longer = SAME + "y = 1\n"
    found = duplicates({"a.py": longer, "b.py": longer, "c.py": longer})
    assert [same.length for same in found] == [7, 7, 7]
    assert len(places(found)) == 3


def test_imports_and_docstrings_may_be_the_same() -> None:
    imports = "".join(f"import m{number}\n" for number in range(9))
    docstring = dedent('''
        """Nine lines
        that
        are
        the
        same
        in
        both
        files.
        """
    ''')
    assert duplicates({"a.py": docstring + imports, "b.py": docstring + imports}) == []
    rows = "\n".join(f"{number}: {number}," for number in range(9))
    table = f"__all__ = public_names(__name__, {{\n{rows}\n}})\n"
    assert duplicates({"a.py": table, "b.py": table}) == []
    assert duplicates({"a.py": table.replace("public_names", "other"), "b.py": table.replace("public_names", "other")})


def test_reads_of_what_is_private_to_others_are_counted() -> None:
    assert private_reads("x = gate._account._lock") == 2
    assert private_reads("self._a, cls._b, gate.__class__, gate.open, os._exit(1)\ntask._log = False") == 0


def test_a_reading_path_with_a_missing_file_is_no_shorter_one() -> None:
    with pytest.raises(SystemExit, match=r"not there: .*session/session"):
        reading_path({"session/journal.py": ""})


def test_the_measures_fit_this_tree() -> None:
    """What they look for is where they look: the reading path exists whole, and a request visits the gate."""
    assert len(reading_path(sources(PACKAGE))) >= 10
    bare, guarded = visits(guarded=False), visits(guarded=True)
    assert 1 < bare.files < guarded.files
    assert bare.files < bare.functions < guarded.functions
