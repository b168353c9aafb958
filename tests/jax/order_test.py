# SPDX-License-Identifier: Apache-2.0
"""Tests that a lost order of calls is an error with the names of both calls, for 4 bytes and for 64
MiB, and never a wrong number."""

import pytest
import ranks as r

JOIN = 'import fsccl_jax\ngroup = fsccl_jax.join(mesh)\n'


def outputs_of(text, count=2, limit=120):
    with r.Job(JOIN + r.textwrap.dedent(text), count, use='') as job:
        return job.wait(limit)


KINDS = ('all_gather', 'reduce_scatter', 'all_reduce', 'broadcast', 'all_to_all')
SMALL = [(kind, size, count) for kind in KINDS for size in (24, 24 << 10) for count in (2, 3)]
LARGE = [(kind, 72 << 20, 2) for kind in ('all_gather', 'reduce_scatter')]


@pytest.mark.parametrize('kind, size, count', SMALL + LARGE)
def test_two_calls_in_another_order_are_named_on_every_rank(kind, size, count):
    _, outputs = outputs_of(
        f"""
        def program(x):
            token, results = group.token(), []
            for name in (["first", "second"] if rank == 0 else ["second", "first"]):
                result, token = group.{kind}(x if name == "first" else -x, token, site=name)
                results.append(result)
            return results[0] + results[1]
        x = split(np.ones({size} * ranks // 4, np.float32))
        try:
            jax.block_until_ready(shard_map(program)(x))
            print("wrong number")
        except Exception as error:
            print("caught", error, flush=True)
        leave(0)
        """,
        count,
    )
    for output in outputs:
        assert 'wrong number' not in output and 'FSCCL_ERR_MISMATCH' in output, output
        assert 'call 0 of "first"' in output and 'call 0 of "second"' in output, output


def test_lost_order_is_named_100_times_of_100():
    """The sizes go from 4 bytes to 64 MiB. Each trial has a new group, so that it begins in a good
    state."""
    _, outputs = outputs_of(
        """
        named = 0
        for trial in range(100):
            trial_group = group if trial == 0 else fsccl_jax.join(mesh)
            def program(x, trial_group=trial_group):
                token, values = trial_group.token(), []
                for step in ((1, 2) if rank == 0 else (2, 1)):
                    value, token = trial_group.all_reduce(x * step, token, site=f"gradient {step}")
                    values.append(value)
                return values[0] - values[1]
            x = split(np.ones(ranks * 4 ** (trial % 13), np.float32))
            try:
                jax.block_until_ready(shard_map(program)(x))
            except Exception as error:
                words = ("FSCCL_ERR_MISMATCH", "gradient 1", "gradient 2")
                named += all(word in str(error) for word in words)
        print("named", named, flush=True)
        leave(0)
        """,
        limit=300,
    )
    assert all('named 100' in output for output in outputs), outputs


def test_calls_that_nothing_orders_are_named_100_times_of_100():
    """Each of 16 equal calls gets the first token, or the token of the first call. So nothing
    orders the calls, and XLA may run them in any order, although in most runs it is the same on all
    ranks."""
    _, outputs = outputs_of(
        """
        def program(x, trial_group, forked):
            first = trial_group.token()
            result, token = trial_group.all_reduce(x, first, site="call 0")
            results = [trial_group.all_reduce(x * step, token if forked else first, site=f"call {step}")[0]
                       for step in range(1, 17)]
            return jnp.stack([result[0] for result in [result, *results]])
        named = 0
        for trial in range(100):
            trial_group = group if trial == 0 else fsccl_jax.join(mesh)
            x = split(np.ones(ranks * 4 ** (trial % 8), np.float32))
            try:
                jax.block_until_ready(shard_map(lambda x: program(x, trial_group, trial % 2))(x))
            except Exception as error:
                named += "FSCCL_ERR_MISMATCH" in str(error) and "does not take the token" in str(error)
        print("named", named, flush=True)
        leave(0)
        """,
        limit=300,
    )
    assert all('named 100' in output for output in outputs), outputs


def test_a_rank_that_loses_order_alone_is_named_on_the_others():
    _, outputs = outputs_of("""
        def program(x):
            token = group.token()
            one, after = group.all_reduce(x, token, site="one")
            two, _ = group.all_reduce(2 * x, token if rank == 0 else after, site="two")
            return one + two
        try:
            jax.block_until_ready(shard_map(program)(split(np.ones(ranks, np.float32))))
        except Exception as error:
            print("caught", error, flush=True)
        leave(0)
        """)
    assert 'FSCCL_ERR_MISMATCH' in outputs[0] and 'does not take the token' in outputs[0], outputs
    assert 'FSCCL_ERR_MISMATCH' in outputs[1] and '"a call that nothing orders"' in outputs[1], (
        outputs
    )


def test_a_loop_that_runs_once_more_on_a_rank_is_named():
    _, outputs = outputs_of("""
        def program(x):
            def body(token, _):
                value, token = group.all_reduce(x, token, site="in the loop")
                return token, value[0]
            token, values = lax.scan(body, group.token(), length=3 + (rank == 0))
            last, token = group.all_reduce(x, token, site="behind the loop")
            return last
        try:
            jax.block_until_ready(shard_map(program)(split(np.ones(ranks, np.float32))))
        except Exception as error:
            print("caught", error, flush=True)
        leave(0)
        """)
    for output in outputs:
        assert 'call 3 of "in the loop"' in output and 'call 0 of "behind the loop"' in output, (
            output
        )


def test_the_same_call_in_another_program_counts_on():
    """Two compiled programs share a call site. The group counts the calls of a site over all
    programs."""
    statuses, outputs = outputs_of("""
        f = lambda x: group.all_reduce(x, group.token(), site="shared")[0]
        small, large = split(np.ones(ranks, np.float32)), split(np.ones(4 * ranks, np.float32))
        for _ in range(5):
            assert float(shard_map(f)(small).addressable_shards[0].data[0]) == ranks
            assert float(shard_map(f)(large).addressable_shards[0].data[0]) == ranks
        print("right")
        """)
    assert statuses == [0, 0] and all('right' in output for output in outputs), outputs
