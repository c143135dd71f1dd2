"""Runs in DB-GPT's environment: asks the worker on the port that is given all that its client for workers can ask.

To stdout what came back, as its own classes read it.
"""

import asyncio
import json
import sys
from typing import Any

from dbgpt.model.base import WorkerSupportedModel  # type: ignore[import-not-found] # not in our environment
from dbgpt.model.cluster.worker.manager import WorkerRunData  # type: ignore[import-not-found] # as above
from dbgpt.model.cluster.worker.remote_manager import RemoteWorkerManager  # type: ignore[import-not-found] # as above
from dbgpt.model.cluster.worker.remote_worker import RemoteModelWorker  # type: ignore[import-not-found] # as above
from dbgpt.util.parameter_utils import ParameterDescription  # type: ignore[import-not-found] # as above

MODEL = sys.argv[2]


async def main() -> dict[str, Any]:
    worker = RemoteModelWorker()
    worker.load_worker(MODEL, host="127.0.0.1", port=int(sys.argv[1]))
    chat = {"model": MODEL, "messages": [{"role": "human", "content": "Say hello."}], "temperature": 0}
    outputs = [output async for output in worker.async_generate_stream({**chat, "max_new_tokens": 8, "echo": False})]
    whole = await worker.async_generate({**chat, "max_new_tokens": 8, "echo": False})
    bad = await worker.async_generate({**chat, "max_new_tokens": -2})
    metadata = await worker.async_get_model_metadata({"model": MODEL})
    data = WorkerRunData("127.0.0.1", 0, "llm", MODEL, worker, None, None, asyncio.Event())
    manager = RemoteWorkerManager()
    described = await manager._fetch_from_worker(
        data, "/parameter/descriptions", params={"model": MODEL, "worker_type": "llm"}
    )
    supported = await manager._fetch_from_worker(data, "/models/supports")
    try:
        await manager._fetch_from_worker(data, "/models/shutdown", method="POST", json={"model": MODEL})
        refused = ""
    except Exception as exc:  # noqa: BLE001 - theirs has no narrower one
        refused = str(exc)
    return {
        "texts": [output.text for output in outputs],
        "reasons": [output.finish_reason for output in outputs],
        "whole": whole.text,
        "usage": whole.usage,
        "error": [bad.error_code, bad.text],
        "count": await worker.async_count_token("Once upon a time"),
        "context_length": metadata.context_length,
        "system": metadata.ext_metadata.support_system_message,
        "vectors": len(await worker.async_embeddings({"model": MODEL, "input": ["a", "b"]})),
        "parameters": sorted(ParameterDescription(**entry).param_name for entry in described),
        "supported": [WorkerSupportedModel.from_dict(entry) for entry in supported],
        "refused": refused,
    }


json.dump(asyncio.run(main()), sys.stdout)
