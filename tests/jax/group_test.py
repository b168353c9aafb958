# SPDX-License-Identifier: Apache-2.0
"""Tests FSCCL's own collectives inside shard_map. Values and gradients are those of jax.lax, in
every dtype, for even and uneven parts, with ranks that are processes and ranks that are devices of
one process. Errors are exceptions."""

import pathlib
import subprocess
import sys
import time

import pytest
import ranks as r

JOIN = 'import fsccl_jax\ngroup = fsccl_jax.join(mesh)\n'


def run(text, count=2, **options):
    return r.run(JOIN + r.textwrap.dedent(text), count, use='', **options)


VALUES = """
    def ours(x):
        token = group.token()
        whole, token = group.all_gather({"one": x, "two": [x[:, :2]]}, token)
        part, token = group.reduce_scatter(whole, token)
        total, token = group.all_reduce(x, token)
        first, token = group.broadcast(x, token, root=1)
        moved, token = group.all_to_all(x, token)
        return whole["one"], whole["two"][0], part["one"], total, first, moved
    def theirs(x):
        whole, two = lax.all_gather(x, "ranks", tiled=True), lax.all_gather(x[:, :2], "ranks", tiled=True)
        wide = whole if x.dtype != jnp.float16 else whole.astype(jnp.float32)
        part = lax.psum_scatter(wide, "ranks", tiled=True).astype(x.dtype)
        total = lax.psum(x if x.dtype != jnp.float16 else x.astype(jnp.float32), "ranks").astype(x.dtype)
        return whole, two, part, total, lax.all_gather(x, "ranks")[1], lax.all_to_all(x, "ranks", 0, 0, tiled=True)
    jax.config.update("jax_enable_x64", True)
    for dtype in ("int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"):
        x = split(np.random.default_rng(1).integers(0, 9, (6 * ranks, 3)).astype(dtype))
        for mine, jaxs in zip(shard_map(ours)(x), shard_map(theirs)(x)):
            assert np.array_equal(mine.addressable_shards[0].data, jaxs.addressable_shards[0].data), dtype
    print("equal")
"""


@pytest.mark.parametrize('count', [2, 3])
def test_values_are_those_of_lax(count):
    assert all('equal' in output for output in run(VALUES, count))


def test_a_program_may_end_while_its_last_step_runs():
    """JAX runs steps behind the program. Rank 1 waits for none of its own."""
    outputs = run("""
        def step(x):
            token = group.token()
            for _ in range(300):
                x, token = group.all_reduce(x, token)
                x = x / ranks
            return x
        step, x = shard_map(step), split(np.ones(ranks << 12, np.float32))
        for _ in range(3): x = step(x)
        if rank == 0: print("ended with", float(x.addressable_shards[0].data[0]))
        """)
    assert 'ended with 1.0' in outputs[0], outputs


def test_groups_of_other_devices_meet_apart():
    """The groups of two halves of a job, which have the same number, do not meet each other. Nor do
    the next groups, which are of one half and of the whole job."""
    outputs = r.run(
        """
        import fsccl_jax
        first = rank // 2 * 2
        half = Mesh(jax.devices()[first : first + 2], ("ranks",))
        for count in range(2 if first else 1):
            print(fsccl_jax.join(half).ranks, end=" ")
        print(fsccl_jax.join(mesh).ranks)
        """,
        4,
        use='',
    )
    assert [output.split()[-2:] for output in outputs] == [['2', '4']] * 4, outputs


def test_8_bit_floats_are_moved_as_they_are():
    outputs = run("""
        def move(x):
            token = group.token()
            whole, token = group.all_gather(x, token)
            first, token = group.broadcast(x, token)
            return whole, first
        for dtype in ("float8_e4m3fn", "float8_e5m2"):
            values = np.random.default_rng(1).standard_normal(64 * ranks).astype(dtype)
            whole, first = shard_map(move)(split(values))
            assert np.array_equal(np.asarray(whole.addressable_shards[0].data).view("u1"), values.view("u1"))
            assert np.array_equal(np.asarray(first.addressable_shards[0].data).view("u1"), values[:64].view("u1"))
        try:
            shard_map(lambda x: group.all_reduce(x, group.token())[0])(split(values))
        except TypeError as error:
            print("refused", error)
        """)
    assert all(
        '8-bit floats are gathered and broadcast, not reduced; cast it to bfloat16 first' in output
        for output in outputs
    )


def test_types_that_fsccl_does_not_carry_are_named():
    outputs = run("""
        x = split(np.ones(ranks, np.float32))
        for odd in ("jax.random.key(7 + rank)", "jnp.ones(ranks, jnp.int4)"):
            try:
                shard_map(lambda x: group.broadcast([x, eval(odd)], group.token())[0][0])(x)
                print("not named", odd)
            except TypeError as error:
                assert "which FSCCL does not carry: cast it, or give jax.random.key_data() of a key" in str(error), error
        # A number is an array without dimensions.
        total = shard_map(lambda x: x * group.all_reduce(2.5, group.token())[0])(x)
        print("total", float(total.addressable_shards[0].data[0]))
        """)
    assert all('total 5.0' in output and 'not named' not in output for output in outputs), outputs


def test_only_real_floats_of_a_layer_travel_in_the_dtype_of_the_wire():
    outputs = run("""
        tree = {"weight": np.linspace(1, 2, 5, dtype=np.float32), "rows": np.array([3, 1000003, 7], np.int32),
                "phase": np.array([1 + 2j, 3], np.complex64), "one": 1.0}
        shards, shapes = fsccl_jax.fsdp.shard(group, tree)
        seen = {}
        def apply(parameters, x):
            seen.update({name: array.dtype.name for name, array in parameters.items()})
            right = jnp.all(parameters["rows"] == tree["rows"]) & jnp.all(parameters["phase"] == tree["phase"])
            return x * right * parameters["weight"].sum() * parameters["phase"].imag.sum() * parameters["one"]
        layer = fsccl_jax.fsdp.Layer(group, apply, shapes, "mixed", wire="bfloat16")
        loss = lambda parts, x: layer(parts, x, group.token())[0].sum()
        def step(parts, x):
            value, gradients = jax.value_and_grad(loss, allow_int=True)(parts, x)
            return value[None], {name: gradients[name] for name in ("weight", "phase", "one")}
        step = jax.shard_map(step, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False)
        value, gradients = jax.jit(step)(shards, split(np.ones(ranks, np.float32)))
        assert seen == {"weight": "bfloat16", "rows": "int32", "phase": "complex64", "one": "bfloat16"}, seen
        assert {name: array.dtype.name for name, array in gradients.items()} == {
            "weight": "float32", "phase": "complex64", "one": "float32"}
        print("loss", float(value.addressable_shards[0].data[0]))
        """)
    assert all(abs(float(o.split('loss ')[1].split()[0]) - 15) < 0.1 for o in outputs), outputs


def test_counters_include_groups_that_were_left():
    outputs = run("""
        shard_map(lambda x: group.all_reduce(x, group.token())[0])(split(np.ones(ranks, np.float32))).block_until_ready()
        before = fsccl_jax.group_counters()
        group.leave()
        print("kept", fsccl_jax.group_counters() == before and before["operations"] > 0)
        """)
    assert all('kept True' in output for output in outputs), outputs


def test_gradients_are_those_of_lax():
    outputs = run("""
        scale = np.arange(1, 6 * ranks + 1, dtype=np.float32)
        def ours(x):
            token = group.token()
            whole, token = group.all_gather(x, token)
            part, token = group.reduce_scatter(jnp.sin(whole) * scale, token)
            total, token = group.all_reduce(jnp.cos(part), token)
            moved, token = group.all_to_all(total * x, token)
            first, token = group.broadcast(moved * x, token, root=1)
            return (moved * first).sum()
        def theirs(x):
            whole = lax.all_gather(x, "ranks", tiled=True)
            part = lax.psum_scatter(jnp.sin(whole) * scale, "ranks", tiled=True)
            total = lax.psum(jnp.cos(part), "ranks")
            moved = lax.all_to_all(total * x, "ranks", 0, 0, tiled=True)
            first = lax.all_gather(moved * x, "ranks")[1]
            return (moved * first).sum()
        x = split(np.random.default_rng(1).standard_normal(6 * ranks).astype(np.float32))
        mine, jaxs = (np.asarray(shard_map(jax.grad(f))(x).addressable_shards[0].data) for f in (ours, theirs))
        assert np.allclose(mine, jaxs, rtol=1e-5), (mine, jaxs)
        print("equal", np.abs(mine).max() > 0.1)
        """)
    assert all('equal True' in output for output in outputs)


@pytest.mark.parametrize('width', [2, 20_000])  # small parts and large ones travel differently
def test_uneven_parts_and_their_transposes(width):
    outputs = run(
        f'width = {width}\n'
        + r.textwrap.dedent("""
        counts = [3, 0, 5]
        def both(x):
            token = group.token()
            whole, token = group.all_gather(x, token, counts=counts)
            part, token = group.reduce_scatter(whole, token, counts=counts)
            return whole, part
        x = np.arange(3 * 5 * width, dtype=np.float32).reshape(15, width) % 1000
        whole, part = shard_map(both)(split(x))
        expected = np.concatenate([x[0:3], x[10:15]])
        assert np.array_equal(whole.addressable_shards[0].data, expected)
        own = np.zeros((5, width), np.float32)
        own[:counts[rank]] = 3 * x[5 * rank:5 * rank + counts[rank]]
        assert np.array_equal(part.addressable_shards[0].data, own)
        loss = lambda x: (group.all_gather(x, group.token(), counts=counts)[0] ** 2).sum()
        gradient = shard_map(jax.grad(loss))(split(x)).addressable_shards[0].data
        assert np.array_equal(gradient, 2 * own)
        print("equal")
        """),
        3,
    )
    assert all('equal' in output for output in outputs)


@pytest.mark.parametrize('devices, processes', [(4, 1), (2, 2), (8, 2)])
def test_devices_of_a_process_are_ranks(devices, processes):
    outputs = run(
        """
        count = len(jax.devices())
        def f(x):
            token = group.token()
            whole, token = group.all_gather(x, token)
            part, token = group.reduce_scatter(whole * (1 + lax.axis_index("ranks")), token)
            return whole, part
        x = np.arange(8 * count, dtype=np.float32)
        whole, part = shard_map(f)(split(x))
        for shard in part.addressable_shards:
            assert np.array_equal(shard.data, sum(range(1, count + 1)) * x[shard.index]), shard
        for shard in whole.addressable_shards:
            assert np.array_equal(shard.data, x)
        print("devices", len(part.addressable_shards), count)
        """,
        processes,
        before=f"jax.config.update('jax_num_cpu_devices', {devices})",
    )
    assert all(f'devices {devices} {devices * processes}' in output for output in outputs)


def test_one_process_needs_no_coordination():
    status, output = r.python("""
        import jax, numpy as np, fsccl_jax
        jax.config.update("jax_num_cpu_devices", 4)
        from jax.sharding import Mesh, PartitionSpec as P
        mesh = Mesh(jax.devices(), ("ranks",))
        group = fsccl_jax.join(mesh)
        f = jax.shard_map(lambda x: group.all_reduce(x, group.token())[0], mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"),
                          check_vma=False)
        print(jax.jit(f)(np.ones(4, np.float32)))
        """)
    assert status == 0 and '[4. 4. 4. 4.]' in output, output


def test_bfloat16_moves_half_the_bytes_that_it_moves_through_xla():
    text = """
        x = split(np.ones(1 << 20, "bfloat16"))
        gather(x).block_until_ready()
        before = {counters}()["bytes_written"]
        gather(x).block_until_ready()
        print("moved", {counters}()["bytes_written"] - before)
        """
    xla = r.run(
        "gather = shard_map(lambda x: lax.all_gather(x, 'ranks', tiled=True))\n"
        + r.textwrap.dedent(text.format(counters='fsccl_jax.counters'))
    )
    ours = run(
        'gather = shard_map(lambda x: group.all_gather(x, group.token())[0])\n'
        + r.textwrap.dedent(text.format(counters='fsccl_jax.group_counters'))
    )
    bytes_of = [int(outputs[0].split('moved ')[1].split()[0]) for outputs in (xla, ours)]
    assert bytes_of[1] == pytest.approx(bytes_of[0] / 2, rel=0.01), bytes_of


@pytest.mark.skipif(not r.gives_huge_pages(), reason='this kernel has no huge pages')
@pytest.mark.parametrize('setting, asked', [('advise', True), ('off', False)])
def test_results_lie_in_huge_pages(setting, asked):
    outputs = run(
        r.ASKED_FOR_HUGE_PAGES
        + r.textwrap.dedent("""
        for collective in (group.all_gather, group.all_reduce, group.reduce_scatter, group.all_to_all):
            program = shard_map(lambda x, collective=collective: collective(x, group.token())[0])
            print("asked", is_asked_for_huge_pages(program(split(np.ones(ranks * SIZE, np.float32)))))
        """),
        FSCCL_HUGE_PAGES=setting,
        **r.FRESH_MEMORY,
    )
    for output in outputs:
        assert output.count(f'asked {asked}') == 4, output


def test_a_killed_rank_is_an_exception_with_its_number_at_once():
    best = float('inf')
    for _ in range(3):  # other work on the machine may delay one
        with r.Job(
            JOIN
            + r.textwrap.dedent("""
            total = shard_map(lambda x: group.all_reduce(x, group.token())[0])
            x = split(np.ones(ranks << 14, np.float32))
            total(x).block_until_ready()
            print("ready", flush=True)
            if rank == 1: time.sleep(100)
            try:
                total(x).block_until_ready()
            except Exception as error:
                print("caught", time.time(), error, flush=True)
                leave(3)
            """),
            3,
            use='',
        ) as job:
            for rank in range(3):
                job.wait_for(rank, 'ready')
            time.sleep(0.3)
            ended = job.kill(1)
            statuses, outputs = job.wait(30, who=[0, 2])
        for output in outputs:
            assert "rank 1 of 'jax 0' died [FSCCL_ERR_PEER_DEAD" in output, output
        assert statuses == [3, 3], outputs
        caught = [float(output.split('caught ')[1].split()[0]) for output in outputs]
        best = min(best, max(caught) - ended)
        if best < r.SOON_S:
            break
    assert best < r.SOON_S


def test_xla_compiles_no_code_for_a_call():
    """The first token of a call is a constant, and its place is a value that XLA has already, so
    XLA compiles a program sooner."""
    outputs = run("""
        program = shard_map(lambda x: group.all_reduce(x, group.token())[0])
        text = program.lower(split(np.ones(ranks, np.float32))).compile().as_text()
        assert "fsccl_jax_collective" in text and "fusion" not in text, text
        print("no code")
        """)
    assert all('no code' in output for output in outputs)


def test_a_rank_has_its_place_on_the_mesh_of_the_group():
    outputs = run("""
        def total(devices, axes):
            whole = Mesh(devices, axes)
            x = jax.make_array_from_callback((ranks,), NamedSharding(whole, P("ranks")), lambda _: np.ones(1, np.float32))
            program = jax.shard_map(lambda x: group.all_reduce(x, group.token())[0], mesh=whole,
                                    in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False)
            return float(jax.jit(program)(x).addressable_shards[0].data[0])
        devices = np.array(jax.devices())
        for larger in (devices.reshape(1, -1), devices.reshape(-1, 1)):
            axes = ("one", "ranks") if len(larger) == 1 else ("ranks", "one")
            assert total(larger, axes) == ranks
        other = fsccl_jax.join(mesh)
        for wrong in (lambda: total(devices[::-1], ("ranks",)),
                      lambda: shard_map(lambda x: group.all_reduce(x, other.token())[0])(split(np.ones(ranks)))):
            try:
                jax.block_until_ready(wrong())
                print("not found")
            except Exception as error:
                assert "has place" in str(error) and "the mesh with which it was joined" in str(error), error
        assert total(devices, ("ranks",)) == ranks
        print("all places")
        """)
    assert all('all places' in o and 'not found' not in o for o in outputs), outputs


def test_wrong_use_is_named():
    outputs = run("""
        def fails(function, *words):
            try:
                jax.block_until_ready(shard_map(function)(x))
            except Exception as error:
                assert all(word in str(error) for word in words), (words, str(error))
                return
            raise AssertionError(words)
        x = split(np.ones(3 * ranks, np.float32))
        token = group.token
        fails(lambda x: group.reduce_scatter(x, token())[0], "an array has 3 rows", "2 ranks: pad it, or give counts")
        fails(lambda x: group.all_gather(x[0], token())[0], "no dimensions", "reshape it to (1,)")
        fails(lambda x: group.all_gather(x, token(), counts=[3])[0],
              "counts has 1 numbers (3,): give one for each of the 2 ranks")
        fails(lambda x: group.all_gather(x, token(), counts=[2, 2])[0], "has 3 rows, and counts (2, 2) ask for 2")
        fails(lambda x: group.broadcast(x, token(), root=2)[0], "root is 2, and there are ranks 0 to 1")
        fails(lambda x: group.all_gather(x, token() + 5)[0], "has place", "begin with the group's token()")
        try:
            fsccl_jax.join("mesh")
        except TypeError as error:
            assert "is no jax.sharding.Mesh" in str(error)
        # A call that was refused before FSCCL was asked leaves the group as it was.
        total = shard_map(lambda x: group.all_reduce(x, token())[0])(x)
        assert float(total.addressable_shards[0].data[0]) == 2
        group.leave()
        fails(lambda x: group.all_reduce(x, token())[0], "is in no group: call fsccl_jax.join(mesh)")
        print("all named")
        """)
    assert all('all named' in output for output in outputs)


def test_the_proof_for_gpus_runs_on_processors():
    """The proof passes on processors. So a failure on a GPU is one of the GPU's path, not of the
    proof's checks."""
    proof = pathlib.Path(__file__).with_name('gpu_proof.py')
    result = subprocess.run(
        [sys.executable, str(proof), '--cpu', '--seconds', '250'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0 and '27 passed, 0 failed' in result.stdout, result.stdout
