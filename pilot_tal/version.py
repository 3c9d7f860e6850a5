"""The version and how to install it, where even the lightest module may look."""

__version__ = "0.2.0"
INSTALL = "pip install ."
"""To be typed in a clone of the repository: there is no package on PyPI yet."""


def install_hint(extra: str) -> str:
    """How to install with an optional dependency group."""
    return f"in a clone of pilot_tal: {INSTALL.removesuffix('.')}'.[{extra}]'"
