#!/usr/bin/env python3
"""Runs a command with several hosts at hand: network namespaces joined by a bridge.

    hosts.py --hosts 2 [--rate 1gbit] -- command ...

The command finds their names in TEST_HOSTS (paths of /run/netns, separated by commas) and enters them with setns(). Where the
kernel does not allow namespaces, TEST_HOSTS is a number: then processes are told apart by FSCCL_HOST_ID alone. Addresses are
10.119.0.1, 10.119.0.2 and so on. Everything is gone when the command has ended.
"""
import argparse
import os
import shutil
import subprocess
import sys

FOLDER = "/run/netns"


def inside():
    """Continues in namespaces of its own: what is made there ends with this process."""
    for flags in (["--net", "--mount"], ["--user", "--map-root-user", "--net", "--mount"]):
        if subprocess.run(["unshare", *flags, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            os.environ["TEST_HOSTS_INSIDE"] = "1"
            os.execvp("unshare", ["unshare", *flags, "--kill-child", sys.executable, *sys.argv])
    return False


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make(number, rate):
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    os.makedirs(FOLDER)
    ip("link", "add", "between", "type", "bridge")
    ip("link", "set", "between", "up")
    names = []
    for host in range(number):
        name, outer = f"host{host}", f"port{host}"
        ip("netns", "add", name)
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", outer, "master", "between", "up")
        ip("-n", name, "addr", "add", f"10.119.0.{host + 1}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        if rate:
            for where in (["-n", name, "dev", "eth0"], ["dev", outer]):
                net = ["-n", name] if where[0] == "-n" else []
                limit = ["root", "tbf", "rate", rate, "burst", "256k", "latency", "20ms"]
                subprocess.run(["tc", *net, "qdisc", "add", *where[-2:], *limit], check=True)
        names.append(f"{FOLDER}/{name}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", help="of every link in both directions, as tc has it: 1gbit")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")
    command[0] = shutil.which(command[0]) or command[0]
    real = "TEST_HOSTS_INSIDE" in os.environ or (shutil.which("ip") and shutil.which("unshare") and inside())
    if real:
        os.environ["TEST_HOSTS"] = ",".join(make(options.hosts, options.rate))
    else:
        print("no network namespaces here: hosts are told apart by FSCCL_HOST_ID alone", file=sys.stderr)
        os.environ["TEST_HOSTS"] = str(options.hosts)
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
