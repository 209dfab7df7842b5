"""No daemon of this host influences the tests. Tests with a daemon start one of their own."""

import os

os.environ["COREBEAT_SOCKET"] = "/nonexistent/corebeat"
