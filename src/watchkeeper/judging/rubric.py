"""Scores by given criteria: the model scores each one, code adds them up.

Every criterion is asked for exactly once, by name, and its score is one of a few whole numbers: what the model answers
beside that does not fit and is not taken. The total is computed here; a model is never asked to add.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.judging.showing import TASK_CHARS, cut, shown_answer
from watchkeeper.judging.templates import DATA, NAMESPACE
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import PromptTemplate

MOST_STEPS: Final = 10
"""A scale has at most so many steps above 0: nobody tells 57 from 58."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing to score.

    Attributes:
        name: A word, as an identifier: ``accuracy``, ``tone_of_voice``.
        description: What deserves the full score, in a sentence.
        weight: How much it counts beside the others.
    """

    name: str
    description: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what could not be asked or added.

        Raises:
            ConfigurationError: For a name that is no identifier, an empty description, or a weight not above 0.
        """
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ConfigurationError(f"Criterion.name={self.name!r} must be a word of letters, digits and underscores")
        if not self.description.strip():
            raise ConfigurationError(f"criterion {self.name!r} has no description; say what deserves the full score")
        if not isfinite(self.weight) or self.weight <= 0:
            raise ConfigurationError(f"criterion {self.name!r}: weight={self.weight!r} must be a number above 0")


@dataclass(frozen=True, slots=True)
class RubricResult:
    """The scores of one work.

    Attributes:
        scores: By criterion, from 0 to the rubric's ``most``.
        reasons: By criterion, why.
        total: The weighted mean of the scores as a share of the most: 0.0 to 1.0.
    """

    scores: Mapping[str, int]
    reasons: Mapping[str, str]
    total: float


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria and their scale.

    Attributes:
        criteria: What is scored.
        most: The full score of each; 0 is the least.
        template: What the model is asked: `prompt` fills it, `result` reads its answer.
    """

    criteria: Sequence[Criterion]
    most: int = 5
    template: PromptTemplate[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the template.

        Raises:
            ConfigurationError: If there are no criteria, two of one name, or a scale that is none.
        """
        criteria = tuple(self.criteria)
        names = [criterion.name for criterion in criteria]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(f"a rubric needs criteria, each with a name of its own; got {names}")
        if not 1 <= self.most <= MOST_STEPS:
            raise ConfigurationError(f"Rubric.most={self.most!r} must be from 1 to {MOST_STEPS}")
        object.__setattr__(self, "criteria", criteria)
        object.__setattr__(self, "template", self._template())

    def prompt(self, task: str, work: Any) -> Prompt[Any]:
        """Return the prompt that asks for the scores of a work.

        Args:
            task: What was asked for.
            work: What came of it; typed values are shown as JSON.
        """
        return Prompt(self.template).with_variables(task_description=cut(task, TASK_CHARS), work=shown_answer(work))

    def result(self, answer: Any) -> RubricResult:
        """Return the scores with their total.

        Args:
            answer: The output of an evaluation of `prompt`.

        Raises:
            ConfigurationError: If it is something else.
        """
        scores: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for criterion in self.criteria:
            scored = getattr(answer, criterion.name, None)
            score, reason = getattr(scored, "score", None), getattr(scored, "reason", None)
            if not isinstance(score, int) or not isinstance(reason, str) or not 0 <= score <= self.most:
                raise ConfigurationError(f"{answer!r} is no answer to this rubric; give the output of rubric.prompt()")
            scores[criterion.name], reasons[criterion.name] = score, reason
        full = sum(criterion.weight for criterion in self.criteria) * self.most
        total = sum(criterion.weight * scores[criterion.name] for criterion in self.criteria) / full
        return RubricResult(MappingProxyType(scores), MappingProxyType(reasons), total)

    def _template(self) -> PromptTemplate[Any]:
        listed = "\n".join(f"- {each.name}: {each.description.strip()}" for each in self.criteria)
        job = (
            f"Score the work by each criterion with a whole number from 0 (not at all) to {self.most} (fully), each on"
            f" its own, the reason first. {DATA}\n\n{listed}"
        )
        return PromptTemplate[Any](
            ns=NAMESPACE,
            key="rubric",
            sections=(
                MarkdownSection(title="Task", key="task", template="<<<\n${task_description}\n>>>"),
                MarkdownSection(title="Work", key="work", template="<<<\n${work}\n>>>"),
                MarkdownSection(title="Your job", key="job", template=job.replace("$", "$$")),
            ),
            output_type=self._answer_type(),
        )

    def _answer_type(self) -> Any:
        """Return the type of the answer: for each criterion, by its name, a reason and one of the scores."""
        steps: Any = Literal[tuple(range(self.most + 1))]
        scored = msgspec.defstruct("Scored", [("reason", str), ("score", steps)], frozen=True)
        return msgspec.defstruct("Scores", [(criterion.name, scored) for criterion in self.criteria], frozen=True)
