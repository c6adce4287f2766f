"""Files of a folder, as they appear there."""

from __future__ import annotations

from spouts.files.spout import FileBatch, FileSpout, PlannedFile

__all__ = ["FileBatch", "FileSpout", "PlannedFile"]
