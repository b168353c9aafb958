# SPDX-License-Identifier: Apache-2.0
"""Tests how ranks find each other. A rank that cannot come is an error on the others at once, a
late one after FSCCL_TIMEOUT_MS, and Ctrl-C ends the wait for it."""

import signal

import pytest
import ranks as r

NO_INTERFACE = 'if rank == 0: os.environ["FSCCL_BOOTSTRAP_INTERFACE"] = "nope"'
TRY = """
    try:
        {call}
    except Exception as error:
        print("caught", error, flush=True)
    leave(3)
"""
JOIN = 'import fsccl_jax; fsccl_jax.join(mesh)'
SUM = 'shard_map(lambda x: lax.psum(x, "ranks"))(split(np.ones(ranks, np.float32))).block_until_ready()'


@pytest.mark.parametrize('use, call', [('', JOIN), (r.USE, SUM)])
def test_the_others_learn_at_once_that_rank_0_has_no_id(use, call):
    with r.Job(TRY.format(call=call), use=use, before=NO_INTERFACE) as job:
        statuses, outputs = job.wait(60)
    assert statuses == [3, 3] and 'FSCCL_BOOTSTRAP_INTERFACE=nope' in outputs[0], outputs
    assert 'process 0 has failed' in outputs[1], outputs


def test_a_process_0_with_several_devices_does_not_hold_up_the_others():
    flag = '--xla_force_host_platform_device_count=2'
    call = SUM.replace('np.ones(ranks', 'np.ones(3 * ranks')
    with r.Job(
        TRY.format(call=call), before=f'if rank == 0: os.environ["XLA_FLAGS"] = "{flag}"'
    ) as job:
        statuses, outputs = job.wait(60)
    assert statuses == [3, 3] and 'this process has 2 CPU devices' in outputs[0], outputs
    assert 'process 0 has failed' in outputs[1], outputs


def test_a_rank_waits_for_the_id_until_the_deadline():
    call = f'if rank: {JOIN}'
    with r.Job(TRY.format(call=call), use='', FSCCL_TIMEOUT_MS='2000') as job:
        _, outputs = job.wait(60)
    assert 'process 0, which makes the id by which the ranks find each other' in outputs[1], outputs
    assert 'has not come within 2000 ms (FSCCL_TIMEOUT_MS)' in outputs[1], outputs


@pytest.mark.parametrize('who', [0, 1])
def test_ctrl_c_ends_a_join_that_waits_for_another_rank(who):
    """Rank 0 waits in the library for the others, and rank 1 in JAX for the id."""
    text = f"""
    import fsccl_jax, gc, signal
    join = fsccl_jax.join  # imports the rest of the package
    gc.disable()  # JAX has a callback in it, in which Python ignores Ctrl-C
    if rank != {who}: signal.pause()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    print("joining", flush=True)
    try:
        join(mesh)
    except KeyboardInterrupt:
        print("heard", flush=True)
    """
    with r.Job(text, use='') as job:
        job.wait_for(who, 'joining')
        job.processes[who].send_signal(signal.SIGINT)
        job.wait_for(who, 'heard')
