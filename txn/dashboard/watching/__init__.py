"""Watch topologies: indexed logs, tables as of a txid, trouble."""
