// Asks the server whether it is ready, while the page can be seen: what the dots say is never older than two seconds.

import { ask } from "./api.js";

export const EVERY_MS = 800;
export const PATIENCE_MS = 1000;
const PASSING = ["loading", "draining"];
const READY = { state: "ready", text: "Ready" };

export class Heartbeat {
  /** `model()` is the id of the model in use, or nothing; `changed(found, before)` is called when the state is new. */
  constructor({ model, changed }) {
    Object.assign(this, { model, changed });
    this.round = 0;
    this.heardAt = -Infinity;
    this.found = { state: "", text: "" };
  }

  start() {
    document.addEventListener("visibilitychange", () => this.wake());
    this.wake();
  }

  /** Something of an answer has come: while answers take all of the browser's connections, a beat has to wait. */
  heard() {
    this.heardAt = performance.now();
  }

  wake() {
    this.round++;
    if (document.visibilityState === "visible") this.beat(this.round);
  }

  async beat(round) {
    const began = performance.now();
    const found = await this.look();
    if (round !== this.round) return;
    const { found: before } = this;
    this.found = found;
    if (found.state !== before.state || found.text !== before.text) this.changed(found, before);
    setTimeout(() => round === this.round && this.beat(round), Math.max(100, EVERY_MS - (performance.now() - began)));
  }

  async look() {
    try {
      return await read(await ask("ready", { signal: AbortSignal.timeout(PATIENCE_MS) }), this.model());
    } catch {
      return performance.now() - this.heardAt < PATIENCE_MS ? READY : { state: "error", text: "No answer" };
    }
  }
}

/** A server of several models is not ready if one of them is not; what counts is the one in use. */
async function read(response, model) {
  if (response.ok || response.status === 404) return READY; // Not every server has this endpoint.
  if (response.status !== 503) return { state: "error", text: `Status ${response.status}` };
  const { models = {} } = await response.json().catch(() => ({}));
  const state = models[model];
  if (state === "ready" || state === "unloaded") return READY;
  if (!state) return { state: "loading", text: "Not ready" };
  return { state: PASSING.includes(state) ? state : "error", text: state[0].toUpperCase() + state.slice(1) };
}
