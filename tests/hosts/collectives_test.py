#!/usr/bin/env python3
"""Right results between hosts, and no error where none is due: hosts.py --hosts 3 [--loss 1] -- collectives_test.py fsccl-perf

Every collective, with 1 and with 2 ranks on each host; fsccl-perf checks all elements.
"""
import subprocess
import sys

import ranks

SIZES = ["-b", "64", "-e", "1M", "-f", "128", "-n", "3", "-w", "1", "-m", "1"]


def lost():
    """Packets that TCP has sent again, on all hosts."""
    total = 0
    for enter, _ in ranks.hosts():
        lines = subprocess.run([*enter, "cat", "/proc/net/snmp"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        total += int(values[names.index("RetransSegs")])
    return total


def main():
    perf, losses = sys.argv[1], sys.argv[2:] == ["lossy"]
    failed = 0
    for per_host in 1, 2:
        processes = ranks.start([perf, "collectives", "--coll", "all", *SIZES], per_host)
        for rank, (status, output, errors) in enumerate(ranks.ends(processes)):
            if status != 0:
                failed += 1
                print(f"{per_host} ranks on each host: rank {rank} ended with {status}: {errors}{output if rank == 0 else ''}")
    if losses and lost() == 0:
        failed += 1
        print("no packet was lost: this test has tested nothing")
    sys.exit(1 if failed else 0)


main()
