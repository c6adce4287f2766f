"""The txids in a table's file, from its Parquet footer if the log lacks them.

Delta records bounds of the first 32 columns unless the table asks for more, and `txid` comes after
the columns of the rows. A topology's tables ask (`create_table`). If somebody has unset that, a
rewrite of the files (OPTIMIZE) leaves out the bounds of `txid`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from committers.publishing.files import ActiveFile, active_files
from committers.staging.parquet_stats import delta_stats
from txn.interfaces import StagedFile
from txn.storage.asking import in_parallel
from txn.storage.storage import Storage

__all__ = ["measured", "with_bounds"]


def with_bounds(files: Mapping[str, ActiveFile], storage: Storage) -> dict[str, ActiveFile]:
    """Add bounds of `txid` from the footers of files for which the log has none."""
    unknown = [file for file in files.values() if None in (file.txid_min, file.txid_max)]
    if not unknown:
        return dict(files)
    bounded = in_parallel(lambda file: _with_footer_bounds(file, storage), unknown)
    return {**files, **{file.path: file for file in bounded}}


def _with_footer_bounds(file: ActiveFile, storage: Storage) -> ActiveFile:
    whole = measured(file, storage)
    # Gone, or not Parquet: reading its rows will fail.
    return file if whole is None else active_files([whole])[file.path]


def measured(file: ActiveFile, storage: Storage) -> StagedFile | None:
    """Return a file with all statistics, from its footer; None if it is gone, or no Parquet."""
    try:
        metadata = storage.footer(file.path, file.size)
    except pa.ArrowInvalid:
        metadata = None
    if metadata is None:
        return None
    return StagedFile(
        file.path, file.size, metadata.num_rows, file.partition, delta_stats(metadata)
    )
