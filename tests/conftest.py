"""What holds for all tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no child would hear Ctrl-C, either
