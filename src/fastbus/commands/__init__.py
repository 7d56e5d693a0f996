"""The commands of `fastbus`, one file each: `add_options` describes the flags, `run` does the work.

Nothing here imports torch before a command runs, so that `fastbus --help` answers at once.
"""
