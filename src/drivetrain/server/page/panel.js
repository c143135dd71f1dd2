// The live panel: polls /status once a second, but only while it can be seen. Its state is that of the heartbeat.

import { getJson } from "./api.js";
import { Chart } from "./charts.js";
import { h } from "./elements.js";

const EVERY_MS = 1000;
const MAX_DEVICES = 4;

export class LivePanel {
  /** `maxConcurrency()` is how many requests the model runs at once, or null. */
  constructor(container, maxConcurrency) {
    this.maxConcurrency = maxConcurrency;
    this.timer = 0;
    this.wanted = false;
    this.before = null;
    this.charts = {
      running: new Chart("Running requests", { top: 2 }),
      waiting: new Chart("Waiting requests", { top: 2 }),
      tokens: new Chart("Tokens per second", { format: rate, top: 10 }),
      first: new Chart("Time to first token", { format: seconds, top: 0.1 }),
    };
    this.memory = new Map();
    this.state = h("p", { class: "state", role: "status" }, h("i", { class: "dot" }), "…");
    this.grid = h(
      "div",
      { class: "charts" },
      Object.values(this.charts).map((chart) => chart.element),
    );
    this.note = h("p", { class: "help" }, "Updated every second while this panel is open.");
    container.append(h("h2", { class: "visually-hidden" }, "Live view"), this.state, this.grid, this.note);
    document.addEventListener("visibilitychange", () => this.wake());
  }

  /** Called when the panel comes into or goes out of view. */
  show(visible) {
    this.wanted = visible;
    this.wake();
  }

  wake() {
    const active = this.wanted && document.visibilityState === "visible";
    if (active && !this.timer) this.poll();
    if (!active) this.rest();
  }

  rest() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.before = null;
  }

  async poll() {
    const mine = (this.timer = setTimeout(() => {}, 0)); // Marks the panel as awake while the answer is out.
    const began = performance.now();
    try {
      const status = await getJson("status", { signal: AbortSignal.timeout(5000) });
      if (this.timer === mine) this.take(status);
    } catch (error) {
      if (error.status === 404) this.note.textContent = "This server has no live status.";
    }
    if (this.timer !== mine) return; // The panel was closed meanwhile.
    this.timer = setTimeout(() => this.poll(), Math.max(100, EVERY_MS - (performance.now() - began)));
  }

  take(status) {
    const most = this.maxConcurrency();
    this.charts.running.add(status.running, most ? `of ${most} at once` : "");
    this.charts.waiting.add(status.waiting);
    this.charts.tokens.add(this.tokensPerSecond(status));
    const first = median(status.first_token_s);
    this.charts.first.add(first, Array.isArray(status.first_token_s) && first !== null ? "recent median" : "");
    for (const device of memoryList(status.memory).slice(0, MAX_DEVICES)) this.takeMemory(device);
  }

  /** The growth of the server's count. Its own figure is a mean, over minutes if nobody has looked for minutes. */
  tokensPerSecond({ tokens_per_s: given, completion_tokens: count }) {
    if (!Number.isFinite(count)) return given ?? null;
    const now = performance.now();
    const { before } = this;
    this.before = { count, now };
    return before ? Math.max(0, ((count - before.count) * 1000) / (now - before.now)) : null;
  }

  takeMemory({ device, allocated_bytes: used, total_bytes: total, cached_bytes: cached = 0 }) {
    const name = String(device ?? "device");
    let chart = this.memory.get(name);
    if (!chart) {
      chart = new Chart(`Memory, ${name}`, { format: bytes, top: 1 });
      this.memory.set(name, chart);
      this.grid.append(chart.element);
    }
    if (total > 0) chart.top = total;
    chart.add(Math.max(used, cached), total > 0 ? `of ${bytes(total)}` : "");
  }

  showState({ state, text }) {
    this.state.dataset.state = state;
    this.state.replaceChildren(h("i", { class: "dot", "data-state": state }), text);
  }
}

const memoryList = (memory) =>
  (Array.isArray(memory) ? memory : memory ? [memory] : []).filter((m) => m && typeof m === "object");

function median(given) {
  const values = (Array.isArray(given) ? given : [given]).filter(Number.isFinite).sort((a, b) => a - b);
  const middle = values.length / 2;
  return values.length ? (values[Math.ceil(middle) - 1] + values[Math.floor(middle)]) / 2 : null;
}

const rate = (value) => (value >= 100 ? String(Math.round(value)) : value.toFixed(1));
const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`);

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at++) value /= 1000;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
