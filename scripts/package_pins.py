"""Build hook: a wheel carries the pins of the local model, so that a message can name the file that installs it.

An editable install does not: there the file stands in the tree, and a copy would make a second `watchkeeper` folder.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PINS = ("local-engine.txt", "local-model.txt")


class PackagePins(BuildHookInterface[Any]):
    """Adds the requirement files beside the adapters of a standard wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include; called by hatchling before each build."""
        if version == "standard":
            for name in PINS:
                build_data["force_include"][f"requirements/{name}"] = f"watchkeeper/local/requirements/{name}"
