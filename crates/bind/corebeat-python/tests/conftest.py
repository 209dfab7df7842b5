"""What the host and the shell set does not influence the tests.

A test with a daemon starts one of its own. A shell ignores SIGINT for commands in the background.
"""

import os
import signal

os.environ["COREBEAT_SOCKET"] = "/nonexistent/corebeat"
signal.signal(signal.SIGINT, signal.default_int_handler)
