"""Say where the app is, once it really answers: `python announce.py PID HOST PORT URL OPEN`.

Runs beside the server with the standard library alone, leaves the server's process group of children
at once (so no zombie is left there), and ends by itself when the page is served or the server is gone.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
import webbrowser

PATIENCE = 120.0  # seconds; a cold disk can take half a minute to read the libraries


def answers(host: str, port: int) -> bool:
    """Whether the server says that it is healthy and serves its page."""
    try:
        for path in ("/_stcore/health", "/"):
            connection = http.client.HTTPConnection(host, port, timeout=5)
            connection.request("GET", path)
            status = connection.getresponse().status
            connection.close()
            if status != 200:
                return False
    except (OSError, http.client.HTTPException):
        return False
    return True


def alive(pid: int) -> bool:
    """Whether the process still exists."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> None:
    """Wait, then print the URL, and open it if asked to."""
    pid, host, port, url, show = int(arguments[0]), arguments[1], int(arguments[2]), *arguments[3:]
    if os.fork():
        os._exit(0)
    deadline = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < deadline:
        if answers(host, port):
            print(f"\nCloud Chamber is at {url}\nCtrl-C ends it.", flush=True)
            if show == "open":
                webbrowser.open(url)
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
