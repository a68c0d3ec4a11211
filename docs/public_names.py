"""An extension of griffe, which reads the code for the API page.

It takes imported names for private, also those that a package hands on by ``from a import b as b``.
"""

import griffe


class PublicNames(griffe.Extension):
    """Makes names public that are imported under their own name."""

    def on_alias_instance(self, *, node, alias, agent, **kwargs):
        """Called for each imported name."""
        del agent, kwargs
        if any(alias.name == name.asname == name.name for name in getattr(node, "names", ())):
            alias.public = True
