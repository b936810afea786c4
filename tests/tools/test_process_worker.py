"""What runs in the process of an isolated tool: finding the function, calling it, answering."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import textwrap
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools import isolated_functions as functions
from watchkeeper.cli.loading import load_module
from watchkeeper.core import codec
from watchkeeper.core.errors import ConfigurationError, ToolDefinitionError
from watchkeeper.session.tagging import dump, load
from watchkeeper.tools import tool as tool_module
from watchkeeper.tools.context import ToolContext
from watchkeeper.tools.isolation import worker as process_worker
from watchkeeper.tools.isolation.worker import (
    Order,
    Reference,
    Reply,
    answer,
    encoded,
    find,
    is_still,
    reference_to,
    refuse_while_importing,
    work,
    write,
)
from watchkeeper.tools.tool import tool
from watchkeeper.tools.values import ToolResult

made = tool(isolation="process")(functions.add)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", leave)
    return codes


def order(function: Any, params: Any, *, spreads: bool = True) -> bytes:
    return codec.encode(Order(reference_to("t", function), spreads, dump(params)))


def replied(function: Any, params: Any, *, spreads: bool = True) -> Reply:
    return codec.decode(answer(order(function, params, spreads=spreads)), Reply)


def sent(request: bytes) -> bytes:
    receiving, sending = os.pipe()
    with pytest.raises(Ended):
        work(request, sending)
    os.close(sending)
    with open(receiving, "rb") as pipe:
        return pipe.read()


def test_what_the_function_returns_is_sent_with_its_length(exits: list[int]) -> None:
    data = sent(order(functions.add, {"a": 1}))
    assert int.from_bytes(data[:8]) == len(data) - 8
    assert load(codec.decode(data[8:], Reply).result) == ToolResult.ok(3)
    assert exits == [0]


@pytest.mark.parametrize(
    ("params", "code"), [({"code": 300}, 44), ({"code": 1, "nothing": True}, 0), ({"code": 9, "text": True}, 1)]
)
def test_an_exit_of_the_function_is_the_exit_of_the_process(exits: list[int], params: Any, code: int) -> None:
    assert sent(order(functions.exit_with, params)) == b""
    assert exits == [code]


def test_an_exit_during_the_import_is_one_too(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(reference: object) -> None:
        raise SystemExit(5)

    monkeypatch.setattr(process_worker, "find", leave)
    assert sent(order(functions.add, {"a": 1})) == b""
    assert exits == [5]


def test_nothing_is_written_where_the_pipe_was_closed(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(descriptor: int, what: os.stat_result) -> bool:
        return False

    monkeypatch.setattr(process_worker, "is_still", never)
    assert sent(order(functions.add, {"a": 1})) == b""
    assert exits == [0]


def test_a_descriptor_is_known_again() -> None:
    one, two = os.pipe()
    other = os.open(os.devnull, os.O_RDONLY)
    assert is_still(one, os.fstat(one))
    assert not is_still(one, os.fstat(other))
    what = os.fstat(one)
    for descriptor in (one, two, other):
        os.close(descriptor)
    assert not is_still(one, what)


def test_everything_is_written() -> None:
    one, two = os.pipe()
    write(two, b"all of it")
    os.close(two)
    assert os.read(one, 100) == b"all of it"
    os.close(one)


def test_a_tool_is_called_by_its_function() -> None:
    assert load(replied(functions.file_order, functions.Order(1, date(2026, 1, 1)), spreads=False).result).success
    assert load(replied(functions.add_later, {"a": 1, "b": 1}).result).value == 2
    reference = reference_to("t", functions.add)
    named = codec.encode(
        {"reference": {**codec.to_builtins(reference), "module": __name__, "qualname": "made", "file": __file__}}
        | {"spreads": True, "params": {"a": 4}}
    )
    assert load(codec.decode(answer(named), Reply).result).value == 6


def test_what_goes_wrong_is_a_reply() -> None:
    failed = replied(functions.fail, {"text": "no"})
    assert (failed.kind, failed.said) == ("failed", "ValueError: no")
    assert failed.traceback.endswith("in fail\n    raise ValueError(text)\nValueError: no")
    assert replied(functions.refuse, {"text": "no"}) == Reply("invalid", "no")
    assert "cannot leave its process" in replied(functions.unserialisable, {}).said
    assert "holds more than 500,000 values" in replied(functions.doubled, {}).said
    assert "cannot leave its process" in replied(functions.nested, {"levels": 150}).said
    assert replied(functions.nested, {"levels": 148}).kind == "returned"
    assert codec.decode(answer(b"{"), Reply).said.startswith("its process could not import it: CodecError")
    assert (
        "is a type there, neither function nor tool"
        in codec.decode(
            answer(codec.encode(Order(reference_to("t", functions.add), True, {})).replace(b'"add"', b'"Order"')), Reply
        ).said
    )


def test_a_result_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_worker, "MAX_RESULT_BYTES", 1000)
    assert replied(functions.large, {"size": 500}).kind == "returned"
    assert "and 1,000 may leave its process" in replied(functions.large, {"size": 1000}).said


def test_the_types_of_a_script_get_the_name_that_the_parent_knows() -> None:
    written = [{"$type": "__mp_main__:A"}, {"$type": "type", "value": "__mp_main__:A"}, '"$type":"__mp_main__:A', 1]
    assert codec.decode(encoded(Reply("returned", result=written)), Reply).result == [
        {"$type": "__main__:A"},
        {"$type": "type", "value": "__main__:A"},
        '"$type":"__mp_main__:A',
        1,
    ]


@pytest.fixture(autouse=True)
def _same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("__main__", "__mp_main__"):
        if name in sys.modules:
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
        else:
            monkeypatch.setitem(sys.modules, name, SimpleNamespace())
            monkeypatch.delitem(sys.modules, name)


class Methods:
    @staticmethod
    def plain(a: int) -> int:
        """Do."""
        return a

    def bound(self, a: int) -> int:
        """Do."""
        return a


class Callee:
    def __call__(self, a: int) -> int:
        """Do."""
        return a


def with_context(a: int, *, context: ToolContext) -> int:
    """Do."""
    return a


anonymous = lambda: 1  # noqa: E731


class TestDefinition:
    def test_an_isolated_tool_names_module_function_and_file(self) -> None:
        made = tool(isolation="process")(functions.add)
        assert made.isolation is not None
        assert made.isolation.kill_grace == 2.0
        assert made.isolation.reference == Reference(functions.__name__, "add", str(functions.__file__))
        assert tool(isolation="process", kill_grace="5s")(functions.add).isolation.kill_grace == 5.0  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]

    def test_a_static_method_has_an_address(self) -> None:
        assert reference_to("t", Methods.plain).qualname == "Methods.plain"

    @pytest.mark.parametrize(
        ("function", "said"),
        [
            (anonymous, "it is a lambda"),
            (Methods().bound, "is not a plain function"),
            (Callee(), "is not a plain function"),
            (functools.partial(functions.add, 1), "is not a plain function"),
            (math.sqrt, "is not a plain function"),
        ],
    )
    def test_what_another_process_cannot_find_is_refused(self, function: Any, said: str) -> None:
        with pytest.raises(ToolDefinitionError, match=said) as caught:
            reference_to("t", function)
        assert "write it with `def` at the top level of a module in a file" in str(caught.value)

    def test_a_function_inside_another_is_refused_when_the_tool_is_defined(self) -> None:
        with pytest.raises(ToolDefinitionError, match=r"inside another function \(.*inner\)"):

            @tool(isolation="process")
            def inner(a: int) -> int:
                """Do."""
                return a

    def test_a_function_typed_into_a_prompt_is_refused(self) -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec("def f() -> int:\n    'Do.'", names)
        with pytest.raises(ToolDefinitionError, match="'__main__' has no file"):
            reference_to("t", names["f"])
        names["f"].__module__ = "nowhere"
        with pytest.raises(ToolDefinitionError, match="'nowhere' has no file"):
            reference_to("t", names["f"])

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"kill_grace": "1s"}, "kill_grace='1s' needs isolation='process'"),
            ({"isolation": "thread"}, "isolation='thread' is not known"),
            ({"isolation": "process", "kill_grace": -1}, "kill_grace=-1 must be more than 0"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, options: Any, said: str) -> None:
        with pytest.raises(ToolDefinitionError, match=said):
            tool(**options)(functions.add)

    def test_a_context_is_refused_with_the_reason(self) -> None:
        with pytest.raises(ToolDefinitionError, match="session, files and resources are not there in another process"):
            tool(isolation="process")(with_context)

    def test_a_system_without_process_groups_is_told_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tool_module, "HAS_PROCESS_GROUPS", False)
        with pytest.raises(ToolDefinitionError, match="needs process groups, which this system"):
            tool(isolation="process")(functions.add)


class TestFinding:
    def test_a_module_that_is_there_is_used(self) -> None:
        assert find(reference_to("t", functions.add)) is functions.add
        assert find(reference_to("t", Methods.plain)) is Methods.plain

    def test_a_module_is_imported_by_its_name_where_that_leads_to_its_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "found_by_name.py"
        file.write_text("import sys\ndef f(): return sys.modules[__name__].__spec__.origin\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert find(Reference("found_by_name", "f", str(file)))() == str(file)
        monkeypatch.delitem(sys.modules, "found_by_name")
        assert find(Reference("found_by_name", "f"))() == str(file)
        monkeypatch.delitem(sys.modules, "found_by_name")

    @pytest.mark.parametrize("name", ["agent_json", "json", "no.package.of.that.name", "json.nothing"])
    def test_a_module_is_read_from_its_file_where_its_name_leads_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        file = tmp_path / "agent.py"
        file.write_text("def f(): return 'mine'\n")
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
        monkeypatch.delitem(sys.modules, name)
        assert find(Reference(name, "f", str(file)))() == "mine"

    def test_a_file_that_is_not_python_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ImportError, match="is not a Python file"):
            find(Reference("of_no_kind", "f", str(tmp_path / "agent.txt")))

    def test_a_script_is_imported_without_its_main_part(self, tmp_path: Path) -> None:
        file = tmp_path / "script.py"
        file.write_text("def f(): return __name__\nif __name__ == '__main__': raise SystemExit(1)\n")
        assert find(Reference("__main__", "f", str(file)))() == "__mp_main__"

    def test_a_module_run_as_a_script_keeps_its_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "a_package_of_mine"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "beside.py").write_text("VALUE = 5\n")
        (package / "run.py").write_text("from .beside import VALUE\ndef f(): return VALUE\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert find(Reference("__main__", "f", str(package / "run.py"), "a_package_of_mine"))() == 5

    def test_nothing_is_run_while_a_module_is_imported_for_its_tool(self, tmp_path: Path) -> None:
        file = tmp_path / "runs.py"
        file.write_text(
            "from watchkeeper.tools.isolation.worker import refuse_while_importing\nrefuse_while_importing()\n"
        )
        with pytest.raises(ConfigurationError, match=r"runs\.py was imported .* under `if __name__ == '__main__':`"):
            find(Reference("__main__", "f", str(file)))
        refuse_while_importing()


SCRIPT = """
    from dataclasses import dataclass
    from enum import Enum
    from watchkeeper import run, tool
    from watchkeeper.adapters.scripted import Call, ScriptedModel
    from watchkeeper import Agent

    class Colour(Enum):
        RED = 1

    @dataclass(frozen=True)
    class Part:
        name: str
        colour: Colour

    @tool(isolation="process")
    def paint(part: Part) -> Part:
        \"\"\"Paint a part.\"\"\"
        assert type(part) is Part and type(part.colour) is Colour
        return Part(part.name + ' "$type":"__mp_main__:', Colour.RED)

    def go():
        model = ScriptedModel([Call("paint", {"name": "door", "colour": 1}), "done"])
        result = Agent(model, "You paint.", str, tools=(paint,)).run("Paint.", store=None)
        from watchkeeper.tools.context import ToolInvoked
        for envelope in result.session.log:
            if isinstance(envelope.event, ToolInvoked):
                print(envelope.event.outcome, envelope.event.result.message, type(envelope.event.result.value) is Part)
                print(getattr(envelope.event.result.value, "name", ""))
"""


def ran(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestScripts:
    def test_a_script_may_have_isolated_tools_and_types_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT) + "if __name__ == '__main__':\n    go()\n")
        assert ran(tmp_path, "script.py") == 'ok  True\ndoor "$type":"__mp_main__:\n'

    def test_a_module_run_as_a_script_may_too(self, tmp_path: Path) -> None:
        package = tmp_path / "mine"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "script.py").write_text(textwrap.dedent(SCRIPT) + "if __name__ == '__main__':\n    go()\n")
        assert ran(tmp_path, "-m", "mine.script").startswith("ok  True\n")

    def test_a_script_without_a_main_part_is_told_and_does_not_run_again_and_again(self, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT) + "go()\n")
        said = ran(tmp_path, "script.py")
        assert said.startswith("crashed paint failed: its process could not import it: ConfigurationError: a run was")

    def test_an_agents_file_may_have_isolated_tools(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "json.py").write_text(textwrap.dedent(SCRIPT))
        module = load_module(tmp_path / "json.py")
        assert module.__name__ == "agent_json"
        module.go()
        monkeypatch.delitem(sys.modules, "agent_json")


def test_importing_is_over_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        find(Reference("broken_one", "f", str(file)))
    refuse_while_importing()  # nothing is being imported any more


def test_the_process_imports_nothing_heavy_before_its_function_does() -> None:
    """Its start is part of every call."""
    heavy = ("asyncio", "sqlite3", "structlog", "watchkeeper.core.clock")
    code = f"import sys, watchkeeper.tools.isolation.worker; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
