"""Stores: locate, read and write the files of a table or of a source."""
