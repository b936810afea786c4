"""Paths in their normal form, and patterns."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.errors import FilesystemError
from watchkeeper.tools.filesystem import fits, join, normal_path, parents


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "is absolute"),
        ("//x", "is absolute"),
        ("C:/x", "is absolute"),
        ("c:x", "is absolute"),
        ("..", "leads upwards"),
        ("a/../b", "leads upwards"),
        ("a/..", "leads upwards"),
        ("a\0b", "null byte"),
        ("a\\b", "backslash"),
        ("..\\x", "backslash"),
    ],
)
def test_what_could_leave_the_root_is_refused(path: str, message: str) -> None:
    with pytest.raises(FilesystemError, match=message):
        normal_path(path)


@pytest.mark.parametrize(
    ("path", "normal"),
    [("", ""), (".", ""), ("./", ""), ("a//b/", "a/b"), ("./a/./b", "a/b"), ("a b/ü", "a b/ü"), ("...", "...")],
)
def test_a_path_has_one_normal_form(path: str, normal: str) -> None:
    assert normal_path(path) == normal
    assert normal_path(normal) == normal


@given(st.text(alphabet="ab./\\:\0C"))
def test_a_normal_path_never_leaves_the_root(path: str) -> None:
    try:
        normal = normal_path(path)
    except FilesystemError:
        return
    parts = PurePosixPath(normal).parts
    assert not PurePosixPath(normal).is_absolute()
    assert ".." not in parts
    assert "/".join(parts) == normal


def test_parents_and_join() -> None:
    assert parents("") == []
    assert parents("a") == []
    assert parents("a/b/c") == ["a", "a/b"]
    assert (join("", "a"), join("a", "b")) == ("a", "a/b")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txtx"]),
        ("**/*.txt", ["a.txt", "a/b.txt", "a/b/c.txt"], ["a/b.md"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab/c"]),
        ("**", ["a", "a/b"], []),
        ("a/*/c", ["a/b/c"], ["a/c", "a/b/b/c"]),
        ("a/**/c", ["a/c", "a/b/c", "a/b/b/c"], ["c", "a/c/d"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b/b"], ["b/a"]),
        ("?[ab]", ["xa", "xb"], ["a", "xc", "x/a"]),
        ("A", ["A"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("", [], ["a"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes + no if fits(path, pattern)] == yes


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), min_size=1),
)
def test_a_pattern_of_many_stars_ends_soon_and_agrees_with_plain_recursion(pattern: list[str], path: list[str]) -> None:
    def plain(names: list[str], parts: list[str]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            return plain(names, parts[1:]) or (bool(names) and plain(names[1:], parts))
        return bool(names) and parts[0] in ("*", names[0]) and plain(names[1:], parts[1:])

    last = [*pattern, "*"] if pattern[-1] == "**" else pattern
    assert fits("/".join(path), "/".join(pattern)) == plain(path, last)
