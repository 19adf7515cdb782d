"""Readers, one file format each: a path in, ``RawData`` out. No user file is ever unpickled freely."""
