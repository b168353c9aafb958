#!/usr/bin/env python3
"""What goes wrong between hosts, as the user of each rank sees it: hosts.py --hosts 2 -- failures_test.py fsccl-perf"""
import subprocess
import sys
import tempfile

import ranks

PER_HOST = 2
FOREVER = ["collectives", "--coll", "all_reduce", "-b", "1M", "-e", "1M", "-n", "1000000", "-w", "0", "-m", "1", "-c", "0",
           "--in-place", "yes"]
failed = 0


def expect(name, results, words, but=None):
    """Every rank has failed, and said all of the words."""
    global failed
    for rank, (status, _, errors) in enumerate(results):
        if rank == but or (status == 1 and all(word in errors for word in words)):
            continue
        failed += 1
        print(f"{name}: rank {rank} ended with {status}: {errors}")
    print(f"{name}: done")


def running(processes):
    """Until the first operations have been through: they say so on rank 0."""
    for line in processes[0].stdout:
        if "redop" in line:
            return


def main():
    perf = sys.argv[1]
    last = PER_HOST * len(ranks.hosts()) - 1

    for victim in (last, 0, last, 1, last):
        processes = ranks.start([perf, *FOREVER], PER_HOST)
        running(processes)
        processes[victim].kill()
        expect("a killed rank", ranks.ends(processes), ["FSCCL_ERR_PEER_DEAD", f"rank {victim} "], but=victim)

    if ranks.real():
        processes = ranks.start([perf, *FOREVER], PER_HOST, {"FSCCL_TIMEOUT_MS": "3000"})
        running(processes)
        subprocess.run(["ip", "link", "set", "port1", "down"], check=True)
        expect("a link that is down", ranks.ends(processes), ["FSCCL_ERR_TIMEOUT", "FSCCL_TIMEOUT_MS"])
        subprocess.run(["ip", "link", "set", "port1", "up"], check=True)

    once = [perf, "collectives", "-b", "8", "-e", "8", "-n", "1"]
    expect("a transport that only one rank wants",
           ranks.ends(ranks.start(once, PER_HOST, of_rank=lambda rank: {"FSCCL_TRANSPORT": "ucx"} if rank == last else {})),
           ["FSCCL_ERR_MISMATCH", "FSCCL_TRANSPORT"])
    expect("shared memory between hosts", ranks.ends(ranks.start(once, PER_HOST, {"FSCCL_TRANSPORT": "shm"})),
           ["FSCCL_ERR_NOT_AVAILABLE", "FSCCL_TRANSPORT=shm", "FSCCL_HOST_ID"])
    expect("a hierarchy that only one rank wants",
           ranks.ends(ranks.start(once, PER_HOST, of_rank=lambda rank: {"FSCCL_HIERARCHY": "off"} if rank == last else {})),
           ["FSCCL_ERR_MISMATCH", "FSCCL_HIERARCHY"])
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/libucp.so.0", "w", encoding="ascii") as library:
            library.write("no library")
        expect("a rank without UCX",
               ranks.ends(ranks.start(once, PER_HOST, of_rank=lambda rank: {"LD_LIBRARY_PATH": folder} if rank == last else {})),
               ["FSCCL_ERR_NOT_AVAILABLE", f"rank {last} cannot use the ucx transport", "libucx0"])
    expect("devices that are not there", ranks.ends(ranks.start(once, PER_HOST, {"UCX_NET_DEVICES": "nosuch0", "UCX_TLS": "tcp"})),
           ["FSCCL_ERR", "UCX"])
    sys.exit(1 if failed else 0)


main()
