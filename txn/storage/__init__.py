"""One store: where the files of a table or of a source lie, and how they are read and written."""
