# SPDX-License-Identifier: Apache-2.0
"""Finds TCP ports for jobs of the measuring programs and the tests."""

import random
import socket


def free_port():
    """Returns a port of the loopback address that is free. So is the next one, at which ranks of
    several hosts meet (MASTER_PORT + 1). Both are below the ports that Linux gives to connections by
    default, so no connection takes them until the job has begun."""
    while True:
        port = random.randrange(15000, 20000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(('127.0.0.1', port))
                second.bind(('127.0.0.1', port + 1))
                return port
            except OSError:
                continue
