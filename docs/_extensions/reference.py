"""Sphinx directives that write the configuration and API references from the constructors and `__all__`."""

import inspect

import lightning as L
from constructors import find, settings_of
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import td3_lightning

LIGHTNING = (L.LightningModule, L.LightningDataModule, L.Callback)
SHOWN = {"configure_optimizers", "forward", "training_step"}
HOOKS = {name for kind in LIGHTNING for name in dir(kind) if not name.startswith("_")} - SHOWN


class SettingsTable(SphinxDirective):
    """Write one row for each constructor argument: ``{settings} td3_lightning.TD3``.

    The option ``skip`` names arguments that the environment provides.
    """

    required_arguments = 1
    option_spec = {"skip": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        skip = tuple(self.options.get("skip", "").split())
        lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for each in settings_of(find(self.arguments[0]), skip):
            cells = [f"`{each.name}`", f"`{each.type}`", f"`{each.default}`", each.description]
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        return self.parse_text_to_nodes("\n".join(lines))


class PublicNames(SphinxDirective):
    """Write the documentation of every name in ``td3_lightning.__all__``."""

    def run(self) -> list[nodes.Node]:
        """Build one section for each name."""
        blocks = []
        for name in td3_lightning.__all__:
            kind = "autoclass" if inspect.isclass(getattr(td3_lightning, name)) else "autofunction"
            blocks.append(f"```{{eval-rst}}\n.. {kind}:: td3_lightning.{name}\n   :members:\n```")
        return self.parse_text_to_nodes("\n\n".join(blocks))


def hides(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Hide the hooks that only Lightning calls."""
    return True if name in HOOKS else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("settings", SettingsTable)
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-skip-member", hides)
    return {"parallel_read_safe": True}
