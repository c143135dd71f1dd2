// Talks to the server that the page came from, and to nothing else.

import { apiKey } from "./store.js";

/** A request that failed. `message` is for people: the server's own, if it gave one. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", param = "", retryAfter = 0 } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

export const address = (path) => new URL(path, document.baseURI).href;

export const getJson = (path, { signal } = {}) => json(path, { signal });

export const postJson = (path, body, signal) => json(path, { method: "POST", signal, ...asJson(body) });

const asJson = (body) => ({ headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

async function json(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch {
    throw new ApiError(`The server's answer at /${path} is not JSON.`, { status: response.status });
  }
}

/** The chunks of a streamed answer, until `[DONE]`. An error event from the server is thrown. */
export async function* stream(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify(body),
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = parse(data);
    if (chunk.error) throw new ApiError(messageOf(chunk.error), { code: chunk.error.code ?? "" });
    yield chunk;
  }
  throw new ApiError("The connection ended before the answer was complete.");
}

async function request(path, options) {
  const response = await ask(path, options);
  if (!response.ok) throw await failure(response);
  return response;
}

/** The response, whatever its status. */
export async function ask(path, options) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  try {
    return await fetch(address(path), { ...options, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
}

async function failure(response) {
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not from our server: a proxy's page, say.
  }
  const said = response.status === 401 ? "" : messageOf(error); // Of headers, which people in a browser do not send.
  return new ApiError(said || messageFor(response.status), {
    status: response.status,
    code: error.code ?? "",
    param: error.param ?? "",
    retryAfter,
  });
}

const messageOf = (error) => (typeof error === "string" ? error : String(error.message ?? ""));

function messageFor(status) {
  if (status === 401 && !apiKey()) return "The server requires an API key.";
  if (status === 401) return "The server does not know this key. Check it, or ask whoever runs the server for one.";
  if (status === 403) return "The server does not allow this.";
  if (status === 404) return "The server has no such endpoint.";
  if (status === 413) return "The message is too large for the server.";
  if (status === 429 || status === 503) return "The server is busy. Try again in a moment.";
  return `The server answered with status ${status}.`;
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
}

function lost(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError("The connection to the server was lost before the answer was complete.");
}

/** The `data` of each server-sent event. Lines may end in \n, \r\n or \r and be split anywhere. */
export async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(lost);
      buffer += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A \r at the very end may be half of a \r\n: it waits for the next piece.
      const lines = buffer.split(done ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // If the consumer left early, this closes the connection and frees the slot.
  }
}
