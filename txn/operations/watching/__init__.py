"""What somebody who watches topologies asks: indexed logs, tables as of a txid, trouble."""
