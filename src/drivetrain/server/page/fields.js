// One parameter as a field. An untouched field sends nothing, so the model's own default applies.

import { h, icon } from "./elements.js";

/** `changed()` is called after its value in `values` has changed. */
export function field(control, model, values, changed) {
  return control.lines ? linesField(control, model, values, changed) : numberField(control, model, values, changed);
}

function numberField(control, model, values, changed) {
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
    const value = values[name];
    if (slider) slider.value = String(value ?? otherwise);
    frame.classList.toggle("changed", value !== undefined);
    reset.hidden = value === undefined;
  }
  function set(value) {
    if (value === undefined) delete values[name];
    else values[name] = value;
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
    delete values[name]; // An invalid value is not sent.
    problem(input, error, wrong);
    changed();
  });
  slider?.addEventListener("input", () => {
    input.value = slider.value;
    set(Number(slider.value));
  });

  if (values[name] !== undefined) input.value = String(values[name]);
  show();
  frame.append(
    h("div", { class: "field-head" }, h("label", { for: id }, label), reset, input),
    ...(slider ? [slider] : []),
    h("p", { class: "help", id: `${id}-help` }, help),
    error,
  );
  return frame;
}

function linesField(control, model, values, changed) {
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
    frame.classList.toggle("changed", values[name] !== undefined);
    reset.hidden = !input.value;
  }
  function take() {
    const { value, wrong = "" } = lines.read(input.value, model);
    if (value !== undefined) values[name] = value;
    else delete values[name]; // An invalid value is not sent.
    problem(input, error, wrong);
    show();
    changed();
  }
  input.addEventListener("input", take);
  const kept = values[name];
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
