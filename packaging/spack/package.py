# SPDX-License-Identifier: Apache-2.0
"""Spack's recipe, for Spack 1.0 and newer: put it into a repository of packages as
packages/fsccl/package.py."""

from spack.package import *
from spack_repo.builtin.build_systems.meson import MesonPackage


class Fsccl(MesonPackage):
    """Fully Sharded Collective Communication Library: the collectives and the memory of fully
    sharded data parallel training."""

    license('Apache-2.0')
    # There is no release with an address yet: `spack dev-build fsccl@0.1.0` in a clone builds what
    # is there.
    version('0.1.0')

    variant(
        'ucx', default=True, description='Transport between hosts by UCX, loaded when it is there'
    )
    variant('cuda', default=False, description='Kernels for GPUs')
    variant('programs', default=True, description='fsccl-perf, fsccl-info and fsccl-trace')

    depends_on('c', type='build')
    depends_on('cxx', type='build')
    depends_on('meson@1.0:', type='build')
    depends_on('ninja', type='build')
    depends_on('pkgconfig', type='build')
    depends_on('python@3:', type='build')
    depends_on('fmt@9:')
    depends_on('libsodium')
    depends_on('highway@1.0:')
    depends_on('hwloc@2.1:')
    depends_on('nlohmann-json@3.11:')
    depends_on('cli11@2.1:', when='+programs')
    depends_on('ucx@1.13:', when='+ucx')
    depends_on('cuda', when='+cuda')
    conflicts('%gcc@:11', msg='FSCCL is C++20 as g++ 12 knows it')

    def meson_args(self):
        def feature(name):
            return 'enabled' if self.spec.satisfies(f'+{name}') else 'disabled'

        return [
            '-Dtests=false',
            '-Dwerror=false',
            f'-Dcuda={feature("cuda")}',
            f'-Dprograms={feature("programs")}',
        ]
