"""What every test process starts with."""

import signal

# Shells let jobs in the background ignore Ctrl-C, and processes pass that on: tests that interrupt a run would wait
# for nothing there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
