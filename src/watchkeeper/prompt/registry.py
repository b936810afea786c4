"""Prompts by namespace and key, so that a run can start another by name (seed: subagent-dispatch)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.prompt.template import PromptTemplate


class PromptRegistry:
    """A table of prompts; one per namespace and key."""

    __slots__ = ("_prompts",)

    def __init__(self, *prompts: Prompt[Any] | PromptTemplate[Any]) -> None:
        """Register the given prompts."""
        self._prompts: dict[tuple[str, str], Prompt[Any]] = {}
        for prompt in prompts:
            self.register(prompt)

    def register(self, prompt: Prompt[Any] | PromptTemplate[Any]) -> Prompt[Any]:
        """Add a prompt, or a template with nothing bound, and return the prompt.

        Raises:
            PromptDefinitionError: If another template has the same namespace and key.
        """
        added = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        known = self._prompts.setdefault((added.ns, added.key), added)
        if known.template is not added.template:
            raise PromptDefinitionError(f"prompt {f'{added.ns}/{added.key}'!r} is registered already; use another key")
        self._prompts[added.ns, added.key] = added
        return added

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
