# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile() from tracing the backend. While a compiled model runs Python outside of its
graphs, as DDP does when it broadcasts a model's buffers, torch.compile() looks at every frame, also
at those of this package that c10d calls. It would trace them with tensors that have no memory."""

import types
from typing import TypeVar

import torch

_Class = TypeVar('_Class', bound=type)


def untraced(cls: _Class) -> _Class:
    """Marks the methods of a class and of its bases in this package: where one of them is called
    outside of a graph, torch.compile() compiles neither it nor what it calls. Unlike
    torch.compiler.disable() this takes no time in a call, and loads no compiler."""
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, 'set_code_exec_strategy'):
        return cls
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for base in cls.__mro__:
        if not base.__module__.startswith(f'{__package__}.'):
            continue
        for value in vars(base).values():
            for function in (
                value,
                getattr(value, '__func__', None),
                getattr(value, 'fget', None),
            ):
                if isinstance(function, types.FunctionType):
                    frames.set_code_exec_strategy(function.__code__, skip)
    return cls
