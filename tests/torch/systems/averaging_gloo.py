# SPDX-License-Identifier: Apache-2.0
"""Runs a program over a gloo that averages, which gloo of torch 2.7 does not:
averaging_gloo.py PROGRAM [ARGUMENT ...]"""

import runpy
import sys

from system import average_over_gloo

average_over_gloo()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
