"""Small repositories in three languages: modules that import one another, tests, and lines that are wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

AREAS = {
    "stock": ("bins", "reorder", "counts", "pallets"),
    "billing": ("rates", "rounding", "credit", "dunning"),
    "routing": ("legs", "depots", "windows", "tolls"),
    "auth": ("tokens", "scopes", "lockout", "devices"),
    "export": ("columns", "batches", "charset", "footers"),
    "search": ("ranking", "synonyms", "facets", "stems"),
    "audit": ("trail", "retention", "masking", "seals"),
    "mailer": ("queue", "bounces", "digest", "quota"),
    "parsing": ("lexer", "offsets", "escapes", "blocks"),
    "weather": ("grids", "stations", "alerts", "smoothing"),
}
VERBS = (
    "pick",
    "score",
    "clip",
    "merge",
    "shift",
    "count",
    "rank",
    "fold",
    "spread",
    "trim",
    "weigh",
    "settle",
    "carry",
)
NOUNS = (
    "slot",
    "share",
    "span",
    "level",
    "margin",
    "offset",
    "bucket",
    "weight",
    "step",
    "limit",
    "grade",
    "chunk",
    "gap",
)
DOCS = (
    "Keep the value within what the caller allows",
    "Scale by the factor of the season",
    "Add the surcharge that was agreed",
    "Move to the next free place",
    "Weigh by age, newest first",
    "Leave the rest to the caller",
    "Count what is left over",
)


@dataclass
class Function:
    """A function of a module, with the numbers that make it right."""

    name: str
    param: str
    factor: int
    plus: int
    doc: str
    given: int

    @property
    def wanted(self) -> int:
        """What its test expects."""
        return self.given * self.factor + self.plus


@dataclass
class Module:
    """A module and its test."""

    area: str
    name: str
    path: str
    test: str
    functions: list[Function]
    imports: list[Module] = field(default_factory=list["Module"])


class Repo:
    """A tree of files."""

    def __init__(self, rng: Random, lang: str) -> None:
        self.rng, self.lang = rng, lang
        self.files: dict[str, list[str]] = {}
        self.modules: list[Module] = []
        names = [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]
        rng.shuffle(names)
        for area in rng.sample(sorted(AREAS), 5):
            for name in rng.sample(AREAS[area], 3):
                functions = [
                    Function(
                        names.pop(),
                        rng.choice(("amount", "units", "row", "value", "size", "index")),
                        rng.randint(2, 9),
                        rng.randint(1, 40),
                        rng.choice(DOCS),
                        rng.randint(2, 12),
                    )
                    for _ in range(rng.randint(3, 6))
                ]
                self.modules.append(Module(area, name, *self._paths(area, name), functions))
        for module in self.modules:
            others = [other for other in self.modules if other.area != module.area]
            module.imports = rng.sample(others, rng.randint(1, 2))
        for module in self.modules:
            self.files[module.path] = self._source(module)
            self.files[module.test] = self._tests(module)

    def _paths(self, area: str, name: str) -> tuple[str, str]:
        if self.lang == "py":
            return f"src/{area}/{name}.py", f"tests/{area}/test_{name}.py"
        if self.lang == "go":
            return f"internal/{area}/{name}.go", f"internal/{area}/{name}_test.go"
        return f"packages/{area}/src/{name}.ts", f"packages/{area}/spec/{name}.spec.ts"

    def spelled(self, name: str) -> str:
        """A function's name as the language writes it."""
        if self.lang == "py":
            return name
        first, *rest = name.split("_")
        return (first.title() if self.lang == "go" else first) + "".join(part.title() for part in rest)

    def formula(self, function: Function, factor: int | None = None, plus: int | None = None) -> str:
        """The line that makes the result."""
        factor, plus = factor or function.factor, plus or function.plus
        given = f"{function.param} * {factor} + {plus}"
        return {"py": f"    result = {given}", "go": f"\tresult := {given}"}.get(self.lang, f"  let result = {given};")

    def signature(self, function: Function, strict: bool = False) -> str:
        """The line that opens a function."""
        name = self.spelled(function.name)
        if self.lang == "py":
            return f"def {name}({function.param}: int{', *, strict: bool = False' if strict else ''}) -> int:"
        if self.lang == "go":
            return f"func {name}({function.param} int{', strict bool' if strict else ''}) int {{"
        return f"export function {name}({function.param}: number{', strict = false' if strict else ''}): number {{"

    def _source(self, module: Module) -> list[str]:
        limit = self.rng.randint(400, 4000)
        if self.lang == "py":
            lines = [f'"""The {module.name} of the {module.area}."""', ""]
            lines += [f"from src.{other.area} import {other.name}" for other in module.imports]
            lines += ["", f"CEILING = {limit}", ""]
        elif self.lang == "go":
            lines = [f"// Package {module.area}: {module.name}.", f"package {module.area}", "", "import ("]
            lines += [f'\t"example.test/app/internal/{other.area}" // {other.name}' for other in module.imports]
            lines += [")", "", f"const {module.name}Ceiling = {limit}", ""]
        else:
            lines = [f"// {module.name} of {module.area}"]
            lines += [f'import * as {o.name} from "../../{o.area}/src/{o.name}";' for o in module.imports]
            lines += ["", f"const CEILING = {limit};", ""]
        for function in module.functions:
            other = self.rng.choice(module.imports)
            used = self.spelled(self.rng.choice(other.functions).name)
            lines += self._body(module, function, f"{other.name if self.lang != 'go' else other.area}.{used}")
        return lines

    def _body(self, module: Module, function: Function, used: str) -> list[str]:
        head, made = self.signature(function), self.formula(function)
        if self.lang == "py":
            return [
                "",
                head,
                f'    """{function.doc}."""',
                made,
                f"    if result > CEILING - {function.plus}:",
                f"        return {used}({function.param})",
                "    return result",
                "",
            ]
        end = "return result" + (";" if self.lang == "ts" else "")
        tab = "\t" if self.lang == "go" else "  "
        ceiling = f"{module.name}Ceiling" if self.lang == "go" else "CEILING"
        test = f"if result > {ceiling}-{function.plus} {{" if self.lang == "go" else f"if (result > {ceiling}) {{"
        return [
            f"// {self.spelled(function.name)}: {function.doc.lower()}.",
            head,
            made,
            f"{tab}{test}",
            f"{tab}{tab}return {used}({function.param})",
            f"{tab}}}",
            f"{tab}{end}",
            "}",
            "",
        ]

    def test_name(self, function: Function) -> str:
        """What its test is called."""
        if self.lang == "py":
            return f"test_{function.name}"
        return f"Test{self.spelled(function.name)}" if self.lang == "go" else f"{self.spelled(function.name)} scales"

    def _tests(self, module: Module) -> list[str]:
        if self.lang == "py":
            lines = [f"from src.{module.area} import {module.name}", ""]
        elif self.lang == "go":
            lines = [f"package {module.area}", "", 'import "testing"', ""]
        else:
            lines = [f'import * as {module.name} from "../src/{module.name}";', ""]
        for function in module.functions:
            name, want = self.spelled(function.name), function.wanted
            if self.lang == "py":
                lines += ["", f"def {self.test_name(function)}():"]
                lines += [f"    assert {module.name}.{name}({function.given}) == {want}", ""]
            elif self.lang == "go":
                lines += [f"func {self.test_name(function)}(t *testing.T) {{"]
                lines += [f"\tif got := {name}({function.given}); got != {want} {{"]
                lines += [f'\t\tt.Errorf("got %d, want {want}", got)', "\t}", "}", ""]
            else:
                lines += [f'test("{self.test_name(function)}", () => {{']
                lines += [f"  expect({module.name}.{name}({function.given})).toBe({want});", "});", ""]
        return lines

    def at(self, path: str, text: str) -> int:
        """The line (from 0) where a text stands."""
        return next(index for index, line in enumerate(self.files[path]) if text in line)

    def spoil(self, module: Module, function: Function) -> None:
        """Make a function wrong."""
        lines = self.files[module.path]
        wrong = function.plus + self.rng.choice((-1, 1, 10, 3))
        lines[lines.index(self.formula(function))] = self.formula(function, plus=wrong or 7)

    def got(self, module: Module, function: Function) -> int:
        """What the function returns as the file stands."""
        lines = self.files[module.path]
        name = self.spelled(function.name)
        head = next(i for i, line in enumerate(lines) if name in line and "(" in line and "result" not in line)
        made = next(line for line in lines[head:] if "result" in line and "*" in line)
        factor, plus = (int(number) for number in re.findall(r"-?\d+", made.split("*", 1)[1])[:2])
        return function.given * factor + plus

    def failing(self, module: Module) -> list[tuple[Function, int]]:
        """The tests of a module that fail, with what they got."""
        found = [(function, self.got(module, function)) for function in module.functions]
        return [(function, got) for function, got in found if got != function.wanted]

    def grep(self, pattern: str, under: str = "") -> list[tuple[str, int, str]]:
        """The lines that contain a text."""
        return [
            (path, number, line)
            for path, lines in sorted(self.files.items())
            if path.startswith(under)
            for number, line in enumerate(lines, 1)
            if pattern in line
        ]
