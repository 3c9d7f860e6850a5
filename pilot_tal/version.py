"""The version, where even the lightest module may look."""

__version__ = "0.2.0"
