# SPDX-License-Identifier: Apache-2.0
"""Makes the name "fsccl" known to a torch that does not look for backends by their entry points
(before 2.14).

Every torch from 2.5 on calls register() at the end of `import torch` where the package is
installed, unless the variable TORCH_DEVICE_BACKEND_AUTOLOAD is 0. So nothing is imported here but
torch itself: fsccl_torch comes with the first group that names it.
"""


def _create(given, backend_options):
    from fsccl_torch.backend import create

    return create(given, backend_options)


def register():
    import torch.distributed as dist

    if (
        not dist.is_available()
        or hasattr(dist.Backend, '_ensure_backend_registered')
        or 'FSCCL' in dist.Backend._plugins
    ):
        return
    dist.Backend.register_backend('fsccl', _create, extended_api=True, devices=['cpu', 'cuda'])
