// The settings, built from what the model can do: a control is there only if its parameter is listed.
// An untouched control sends nothing, so the model's own default applies.

import { h, icon } from "./elements.js";
import { canLogprobs, limit } from "./model.js";

/** What is typed into a field of several lines: `read` gives the value, if there is one, and what is wrong with it. */
const STOPS = {
  rows: 2,
  read(text, model) {
    const most = limit(model, "max_stops", 16);
    const stops = text.split("\n").filter(Boolean).map(unescaped);
    if (stops.length > most) return { wrong: `At most ${most} are allowed.` };
    return { value: stops.length ? stops : undefined };
  },
  write: (stops) => stops.map(escaped).join("\n"),
};

const SCHEMA = {
  rows: 4,
  read(text) {
    if (!text.trim()) return {};
    try {
      const schema = JSON.parse(text);
      if (!schema || typeof schema !== "object" || Array.isArray(schema)) return { wrong: "A schema is an object." };
      return { value: { type: "json_schema", json_schema: { name: "answer", schema } } };
    } catch (error) {
      return { wrong: `This is not JSON: ${error.message}` };
    }
  },
  write: ({ json_schema: { schema } }) => JSON.stringify(schema, null, 2),
};

const GROUPS = [
  {
    title: "Sampling",
    controls: [
      {
        name: "temperature",
        label: "Temperature",
        min: 0,
        max: 2,
        step: 0.05,
        neutral: 1,
        help: "0 always takes the likeliest token; higher is more varied.",
      },
      {
        name: "top_p",
        label: "Top p",
        min: 0.01,
        max: 1,
        step: 0.01,
        neutral: 1,
        help: "Keeps the likeliest tokens that together have this probability.",
      },
      {
        name: "top_k",
        label: "Top k",
        min: 0,
        integer: true,
        neutral: "off",
        help: "Keeps this many of the likeliest tokens; 0 is off.",
      },
      {
        name: "min_p",
        label: "Min p",
        min: 0,
        max: 1,
        step: 0.01,
        neutral: 0,
        help: "Drops tokens below this fraction of the likeliest one's probability.",
      },
    ],
  },
  {
    title: "Repetition",
    controls: [
      {
        name: "repetition_penalty",
        label: "Repetition penalty",
        min: 0.05,
        max: 2,
        most: 10,
        step: 0.05,
        neutral: 1,
        help: "Above 1 discourages repetition.",
      },
      {
        name: "presence_penalty",
        label: "Presence penalty",
        min: -2,
        max: 2,
        step: 0.1,
        neutral: 0,
        help: "Makes tokens that were already used less likely.",
      },
      {
        name: "frequency_penalty",
        label: "Frequency penalty",
        min: -2,
        max: 2,
        step: 0.1,
        neutral: 0,
        help: "Makes tokens less likely each time they are used.",
      },
    ],
  },
  {
    title: "Length and ending",
    controls: [
      { name: "max_tokens", label: "Longest answer", min: 1, integer: true, neutral: "no limit", help: "In tokens." },
      {
        name: "min_tokens",
        label: "Shortest answer",
        min: 0,
        integer: true,
        neutral: "0",
        help: "In tokens; no stop takes effect before.",
      },
      { name: "stop", label: "Stop at", lines: STOPS, help: "One per line. Write \\n for a new line, \\t for a tab." },
      {
        name: "seed",
        label: "Seed",
        min: Number.MIN_SAFE_INTEGER,
        max: Number.MAX_SAFE_INTEGER,
        integer: true,
        neutral: "random",
        help: "The same seed gives the same answer.",
      },
    ],
  },
  {
    title: "Form",
    controls: [
      {
        name: "response_format",
        label: "JSON schema",
        lines: SCHEMA,
        help: "The answer is JSON of this schema. Ask for it in the message too.",
      },
    ],
  },
];

/** Nodes for all settings of the model. `changed()` is called after a value in `settings` has changed. */
export function buildControls(model, settings, changed) {
  const groups = GROUPS.map(({ title, controls }) => {
    const shown = controls.filter(({ name }) => model.parameters.has(name));
    if (!shown.length) return null;
    return h(
      "fieldset",
      { class: "group" },
      h("legend", {}, title),
      shown.map((control) => field(control, model, settings, changed)),
    );
  });
  if (canLogprobs(model)) groups.push(probabilitySwitch(settings, changed));
  return groups.filter(Boolean);
}

function field(control, model, settings, changed) {
  return control.lines ? linesField(control, model, settings, changed) : numberField(control, model, settings, changed);
}

function numberField(control, model, settings, changed) {
  const { name, label, help } = control;
  const id = `control-${name}`;
  const otherwise = model.defaults[name] ?? control.neutral;
  const most =
    name === "max_tokens" || name === "min_tokens" ? (model.contextLength ?? undefined) : (control.most ?? control.max);
  const mode = control.integer ? "numeric" : "decimal";
  const input = h("input", {
    id,
    type: "text",
    inputmode: mode,
    autocomplete: "off",
    placeholder: String(otherwise ?? ""),
    "aria-describedby": `${id}-help`,
  });
  const slider = control.integer
    ? null
    : h("input", {
        type: "range",
        min: control.min,
        max: control.max,
        step: control.step,
        "aria-label": `${label}, slider`,
      });
  const { reset, error, frame } = surround(control, id, clear);

  function show() {
    const value = settings.values[name];
    if (slider) slider.value = String(value ?? otherwise);
    frame.classList.toggle("changed", value !== undefined);
    reset.hidden = value === undefined;
  }
  function set(value) {
    if (value === undefined) delete settings.values[name];
    else settings.values[name] = value;
    problem(input, error, "");
    show();
    changed();
  }
  function clear() {
    input.value = "";
    set(undefined);
    input.focus();
  }
  input.addEventListener("input", () => {
    const text = input.value.trim().replace(",", ".");
    if (!text) return set(undefined);
    const wrong = fault(Number(text), control, most);
    if (!wrong) return set(Number(text));
    delete settings.values[name]; // An invalid value is not sent.
    problem(input, error, wrong);
    changed();
  });
  slider?.addEventListener("input", () => {
    input.value = slider.value;
    set(Number(slider.value));
  });

  if (settings.values[name] !== undefined) input.value = String(settings.values[name]);
  show();
  frame.append(
    h("div", { class: "field-head" }, h("label", { for: id }, label), reset, input),
    ...(slider ? [slider] : []),
    h("p", { class: "help", id: `${id}-help` }, help),
    error,
  );
  return frame;
}

function linesField(control, model, settings, changed) {
  const { name, label, help, lines } = control;
  const id = `control-${name}`;
  const input = h("textarea", {
    id,
    rows: String(lines.rows),
    spellcheck: "false",
    "aria-describedby": `${id}-help`,
    placeholder: "none",
  });
  const { reset, error, frame } = surround(control, id, () => {
    input.value = "";
    take();
    input.focus();
  });
  function show() {
    frame.classList.toggle("changed", settings.values[name] !== undefined);
    reset.hidden = !input.value;
  }
  function take() {
    const { value, wrong = "" } = lines.read(input.value, model);
    if (value !== undefined) settings.values[name] = value;
    else delete settings.values[name]; // An invalid value is not sent.
    problem(input, error, wrong);
    show();
    changed();
  }
  input.addEventListener("input", take);
  const kept = settings.values[name];
  if (kept !== undefined) input.value = lines.write(kept);
  show();
  frame.append(
    h("div", { class: "field-head" }, h("label", { for: id }, label), reset),
    input,
    h("p", { class: "help", id: `${id}-help` }, help),
    error,
  );
  return frame;
}

function surround({ name, label }, id, clear) {
  const reset = h(
    "button",
    {
      type: "button",
      class: "reset",
      "aria-label": `Reset ${label}`,
      title: "Back to the default",
      hidden: true,
      onclick: clear,
    },
    icon("close"),
  );
  const error = h("p", { class: "field-error", id: `${id}-error`, role: "alert", hidden: true });
  return { reset, error, frame: h("div", { class: "field", "data-parameter": name }) };
}

function fault(value, { integer, min, max }, most) {
  const top = most ?? max ?? Infinity;
  if (!Number.isFinite(value)) return "This is not a number.";
  if (integer && !Number.isInteger(value)) return "This must be a whole number.";
  if (value < min || value > top) {
    if (Math.abs(min) > 1e9) return "This number is too large.";
    return top === Infinity ? `This must be at least ${min}.` : `This must be from ${min} to ${top}.`;
  }
  return "";
}

function problem(input, error, text) {
  error.hidden = !text;
  error.textContent = text;
  if (text) (input.setAttribute("aria-invalid", "true"), input.setAttribute("aria-errormessage", error.id));
  else (input.removeAttribute("aria-invalid"), input.removeAttribute("aria-errormessage"));
}

function probabilitySwitch(settings, changed) {
  const box = h("input", {
    type: "checkbox",
    id: "control-logprobs",
    role: "switch",
    "aria-describedby": "control-logprobs-help",
  });
  box.checked = settings.tokens;
  box.addEventListener("change", () => {
    settings.tokens = box.checked;
    changed();
  });
  const head = h("div", { class: "field-head" }, h("label", { for: "control-logprobs" }, "Token probabilities"), box);
  const help = h(
    "p",
    { class: "help", id: "control-logprobs-help" },
    "Shows how likely each token of an answer was, and its alternatives.",
  );
  return h(
    "fieldset",
    { class: "group" },
    h("legend", {}, "Answer"),
    h("div", { class: "field", "data-parameter": "logprobs" }, head, help),
  );
}

const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\" };
const unescaped = (text) => text.replace(/\\([ntr\\])/g, (_, c) => ESCAPES[c]);
const escaped = (text) =>
  text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t").replaceAll("\r", "\\r");
