# SPDX-License-Identifier: Apache-2.0
"""Lost order is an error with the names of both calls, for 4 bytes and for 64 MiB, and never a
wrong number."""

import re

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
        os._exit(0)
        """,
        count,
    )
    for rank, output in enumerate(outputs):
        assert 'wrong number' not in output and 'FSCCL_ERR_MISMATCH' in output, output
        mine, theirs = ('first', 'second') if rank == 0 else ('second', 'first')
        assert f'rank {rank} is at call 0 of "{mine}"' in output and f'of "{theirs}"' in output, (
            output
        )


def test_lost_order_is_named_100_times_of_100():
    """A new group each time, so that each trial begins well."""
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
            x = split(np.ones(ranks * 4 ** (trial % 8), np.float32))
            try:
                jax.block_until_ready(shard_map(program)(x))
            except Exception as error:
                words = ("FSCCL_ERR_MISMATCH", "gradient 1", "gradient 2")
                named += all(word in str(error) for word in words)
        print("named", named, flush=True)
        os._exit(0)
        """,
        limit=300,
    )
    assert all('named 100' in output for output in outputs), outputs


def test_calls_without_order_are_right_or_named_and_never_wrong():
    """Each of 16 equal calls begins with the first token, so XLA runs them as it likes."""
    _, outputs = outputs_of("""
        def program(x):
            results = [group.all_reduce(x * step, group.token(), site=f"call {step}")[0] for step in range(1, 17)]
            return jnp.stack([result[0] for result in results])
        x = split(np.ones(ranks << 12, np.float32))
        step, right, named = shard_map(program), 0, 0
        for trial in range(50):
            try:
                values = np.asarray(step(x).addressable_shards[0].data)
                assert np.array_equal(values, ranks * np.arange(1, 17)), values
                right += 1
            except Exception as error:
                assert "FSCCL_ERR_" in str(error), error
                named += 1
                break
        print("right", right, "named", named, flush=True)
        os._exit(0)
        """)
    for output in outputs:
        assert re.search(r'right \d+ named [01]', output), output


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
        os._exit(0)
        """)
    assert (
        'rank 0 is at call 3 of "in the loop", and rank 1 at call 0 of "behind the loop"'
        in outputs[0]
    ), outputs[0]
    assert (
        'rank 1 is at call 0 of "behind the loop", and rank 0 at call 3 of "in the loop"'
        in outputs[1]
    ), outputs[1]


def test_the_same_call_in_another_program_counts_on():
    """Two compiled programs share a site; its calls are counted for the group."""
    statuses, outputs = outputs_of("""
        f = lambda x: group.all_reduce(x, group.token(), site="shared")[0]
        small, large = split(np.ones(ranks, np.float32)), split(np.ones(4 * ranks, np.float32))
        for _ in range(5):
            assert float(shard_map(f)(small).addressable_shards[0].data[0]) == ranks
            assert float(shard_map(f)(large).addressable_shards[0].data[0]) == ranks
        print("right")
        """)
    assert statuses == [0, 0] and all('right' in output for output in outputs), outputs
