"""Serve one Simulator or BatchedEnv over stdin and stdout: the child's side of process.py.

    python -m envs.adapters.process_server module:factory --num-envs N [--parameters JSON]

Unasked, the server sends ``{"result": greeting}`` (or ``{"error": ...}`` and ends) with

    face          "simulator" or "batched"        spec       EnvSpec.to_json() as JSON, bytes
    num_envs      integer                         capabilities   fields of Capabilities

and then answers ``{"call": name, "arguments": [...]}`` with ``{"result": value}`` or
``{"error": {"kinds": [class, bases...], "message": text, "trace": text}}``, until its stdin ends.
The calls are the methods of the face; ``step`` gives ``[Decision, Outcome]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from envs.adapters.child import describe_exception
from envs.batched import BatchedEnv
from envs.simulator import Simulator
from envs.wire import WireClosedError, encode_frame, known_records, read_frame

_CALLS = {
    "simulator": ("reset", "step", "get_state", "set_state", "snapshot", "restore", "taps"),
    "batched": ("reset", "step"),
}


def claim_channel() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the client, taken out of everybody else's reach.

    Whatever the backend prints, from Python or C, goes to stderr afterwards, and its stdin is
    empty.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return open(incoming, "rb", buffering=0), open(outgoing, "wb")


def build(factory: str, num_envs: int, parameters: str) -> Simulator | BatchedEnv:
    """The environment that a factory gives.

    Raises:
        ValueError: no "module:attribute", or parameters that are no JSON object.
        TypeError: the factory gave something else than a Simulator or a BatchedEnv.
    """
    module, colon, attribute = factory.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f'factory must be "module:attribute", got {factory!r}')
    try:
        keywords = json.loads(parameters)
    except ValueError as error:
        raise ValueError(f"parameters are not JSON: {error}") from None
    if not isinstance(keywords, dict):
        raise ValueError(f"parameters must be a JSON object, got {parameters}")
    env = getattr(importlib.import_module(module), attribute)(num_envs=num_envs, **keywords)
    if not isinstance(env, (Simulator, BatchedEnv)):
        raise TypeError(f"{factory} gave a {type(env).__name__}, not a Simulator or BatchedEnv")
    return env


def greeting(env: Simulator | BatchedEnv) -> dict[str, Any]:
    return {
        "face": "simulator" if isinstance(env, Simulator) else "batched",
        "spec": json.dumps(env.spec.to_json()).encode(),
        "num_envs": env.num_envs,
        "capabilities": dataclasses.asdict(env.capabilities),
    }


def answer(env: Simulator | BatchedEnv, face: str, request: dict[str, Any]) -> Any:
    """The result of one request."""
    name, arguments = request["call"], request["arguments"]
    if name not in _CALLS[face]:
        raise ValueError(f"a {face} has no call {name!r}; it has {', '.join(_CALLS[face])}")
    result = getattr(env, name)(*arguments)
    return list(result) if name == "step" else result


def encode_answer(make: Callable[[], Any]) -> list[bytes | memoryview]:
    """The frame of a result, or of the exception that it ended in."""
    try:
        return list(encode_frame({"result": make()}))
    except Exception as error:
        return list(encode_frame({"error": describe_exception(error, traceback.format_exc())}))


def serve(factory: str, num_envs: int, parameters: str) -> int:
    """Answer until the client goes; returns the exit status."""
    incoming, outgoing = claim_channel()

    def send(make: Callable[[], Any]) -> None:
        outgoing.writelines(encode_answer(make))
        outgoing.flush()

    built: list[Simulator | BatchedEnv] = []

    def start() -> dict[str, Any]:
        built.append(build(factory, num_envs, parameters))
        return greeting(built[0])

    send(start)
    if not built:
        return 1
    env = built[0]
    face, records = greeting(env)["face"], known_records(env.spec)
    with env:
        while True:
            try:
                request = read_frame(incoming.read, records)
            except WireClosedError:
                return 0
            send(functools.partial(answer, env, face, request))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m envs.adapters.process_server")
    parser.add_argument("factory", help='"module:attribute", called with num_envs and parameters')
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--parameters", default="{}", help="a JSON object")
    arguments = parser.parse_args(argv)
    return serve(arguments.factory, arguments.num_envs, arguments.parameters)


if __name__ == "__main__":
    sys.exit(main())
