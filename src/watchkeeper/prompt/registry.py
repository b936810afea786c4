"""Prompts by namespace and key, so that a run can start another by name (seed: subagent-dispatch).

A prompt that is registered is enabled until somebody disables it: it can still be looked up, but no run may start it.
Both can change while runs go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate


class PromptRegistry:
    """A table of prompts; one per namespace and key."""

    __slots__ = ("_disabled", "_prompts")

    def __init__(self, *prompts: Prompt[Any] | PromptTemplate[Any]) -> None:
        """Register the given prompts."""
        self._prompts: dict[tuple[str, str], Prompt[Any]] = {}
        self._disabled: set[tuple[str, str]] = set()
        for prompt in prompts:
            self.register(prompt)

    def register(self, prompt: Prompt[Any] | PromptTemplate[Any], *, enabled: bool = True) -> Prompt[Any]:
        """Add a prompt, or a template with nothing bound, and return the prompt.

        Args:
            prompt: What to add; another prompt of the same template takes the place of the earlier one.
            enabled: Whether a run may start it.

        Raises:
            PromptDefinitionError: If another template has the same namespace and key, or it is no prompt.
        """
        if not isinstance(prompt, Prompt | PromptTemplate):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PromptDefinitionError(
                f"a registry holds prompts and templates, and this is of the type {type(prompt).__name__}; "
                "pass them one by one: PromptRegistry(a, b); of an agent pass its template: agent.template"
            )
        added = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        known = self._prompts.setdefault((added.ns, added.key), added)
        if known.template is not added.template:
            raise PromptDefinitionError(f"prompt {f'{added.ns}/{added.key}'!r} is registered already; use another key")
        self._prompts[added.ns, added.key] = added
        (self._disabled.discard if enabled else self._disabled.add)((added.ns, added.key))
        return added

    def enable(self, ns: str, key: str) -> None:
        """Let runs start a prompt again.

        Raises:
            PromptDefinitionError: If there is none of this name.
        """
        self.get(ns, key)
        self._disabled.discard((ns, key))

    def disable(self, ns: str, key: str) -> None:
        """Let no run start a prompt from now on; those that run go on.

        Raises:
            PromptDefinitionError: If there is none of this name.
        """
        self.get(ns, key)
        self._disabled.add((ns, key))

    def is_enabled(self, ns: str, key: str) -> bool:
        """Return whether there is such a prompt and a run may start it."""
        return (ns, key) in self._prompts and (ns, key) not in self._disabled

    @property
    def enabled(self) -> tuple[Prompt[Any], ...]:
        """The prompts that a run may start, oldest first."""
        return tuple(prompt for prompt in self if (prompt.ns, prompt.key) not in self._disabled)

    def get(self, ns: str, key: str) -> Prompt[Any]:
        """Return a prompt.

        Raises:
            PromptDefinitionError: If there is none; the message lists those that exist.
        """
        prompt = self._prompts.get((ns, key))
        if prompt is not None:
            return prompt
        import difflib

        names = [f"{known_ns}/{known_key}" for known_ns, known_key in self._prompts]
        near = difflib.get_close_matches(f"{ns}/{key}", names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise PromptDefinitionError(f"no prompt {f'{ns}/{key}'!r}; {meant}registered: {', '.join(names) or 'none'}")

    def __iter__(self) -> Iterator[Prompt[Any]]:
        """Iterate over the prompts, oldest first."""
        return iter(tuple(self._prompts.values()))

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self._prompts)

    def __contains__(self, name: object) -> bool:
        """Return whether ``(ns, key)`` is registered."""
        return name in self._prompts
