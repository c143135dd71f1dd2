// One small chart: the latest value as text, and its history as a line.

import { h, s } from "./elements.js";

const WIDTH = 240;
const HEIGHT = 48;
const SAMPLES = 90;
const LEAST_SHOWN = 30; // The time scale grows from here to all samples, so that a new chart is not just a corner.

export class Chart {
  /** `format` turns a value into text; `top` is the least height of the scale, so that small values stay low. */
  constructor(title, { format = String, top = 1 } = {}) {
    this.title = title;
    this.format = format;
    this.top = top;
    this.values = [];
    this.value = h("span", { class: "chart-value" }, "–");
    this.note = h("span", { class: "chart-note" });
    this.area = s("path", { class: "chart-area" });
    this.line = s("path", { class: "chart-line", "vector-effect": "non-scaling-stroke" });
    const base = s("path", {
      class: "chart-base",
      d: `M0 ${HEIGHT - 0.5}H${WIDTH}`,
      "vector-effect": "non-scaling-stroke",
    });
    this.svg = s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      base,
      this.area,
      this.line,
    );
    const figure = h("div", { class: "chart-figure" }, this.value, this.note);
    this.element = h("section", { class: "chart", "aria-label": title }, h("h3", {}, title), figure, this.svg);
  }

  /** A new value, or null if it is not known now. */
  add(value, note = "") {
    this.values.push(Number.isFinite(value) ? value : null);
    if (this.values.length > SAMPLES) this.values.shift();
    this.value.textContent = Number.isFinite(value) ? this.format(value) : "–";
    this.note.textContent = note;
    this.draw();
  }

  draw() {
    const known = this.values.filter((value) => value !== null);
    const most = Math.max(this.top, ...known);
    const shown = Math.max(LEAST_SHOWN, this.values.length);
    const step = WIDTH / (shown - 1);
    const begin = shown - this.values.length;
    const y = (value) => HEIGHT - 1 - (value / most) * (HEIGHT - 5);
    let [line, area, run] = ["", "", []];
    const close = () => {
      if (!run.length) return;
      const points = run.map(([x, height]) => `${x.toFixed(1)} ${height.toFixed(1)}`).join("L");
      line += `M${points}${run.length === 1 ? "h.01" : ""}`;
      area += `M${run[0][0].toFixed(1)} ${HEIGHT}L${points}V${HEIGHT}Z`;
      run = [];
    };
    this.values.forEach((value, i) => (value === null ? close() : run.push([(begin + i) * step, y(value)])));
    close();
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    const range = known.length
      ? `, from ${this.format(Math.min(...known))} to ${this.format(Math.max(...known))} in the last ${this.values.length} seconds`
      : "";
    this.svg.setAttribute("aria-label", `${this.title}: ${this.value.textContent}${range}`);
  }
}
