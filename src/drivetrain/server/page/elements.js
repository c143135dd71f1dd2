// Builds DOM nodes. Text is only ever set as text: nothing on this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick: f`) and children (nodes or strings; null is left out). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7",
  download: "M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 19.5h14",
  menu: "M5 7h14M5 12h14M5 17h9",
  sliders: "M4 8h8M16 8h4M4 16h4M12 16h8M14 5.8v4.4M10 13.8v4.4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M18.4 5.6l-1.1 1.1M6.7 17.3l-1.1 1.1",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5 7.5 7.5 0 1 0 19 14.5z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  columns: "M4.5 5h6v14h-6zM13.5 5h6v14h-6z",
  upload: "M12 16V5M7.5 9.5L12 5l4.5 4.5M5 19.5h14",
  clip: "M18.5 11.5l-6.8 6.8a4.2 4.2 0 0 1-6-6l7.2-7.2a2.8 2.8 0 0 1 4 4l-7.1 7.1a1.4 1.4 0 0 1-2-2l6.4-6.4",
  file: "M6.5 3.5h7L18 8v12.5H6.5zM13 3.5V8.5h5",
  braces: "M9 5c-2.5 0-3 1-3 3s0 4-2 4c2 0 2 2 2 4s.5 3 3 3M15 5c2.5 0 3 1 3 3s0 4 2 4c-2 0-2 2-2 4s-.5 3-3 3",
  keyboard: "M3.5 7h17v10.5h-17zM7 10.5h.1M10.3 10.5h.1M13.6 10.5h.1M17 10.5h.1M8.5 14h7",
  close: "M6 6l12 12M18 6L6 18",
  previous: "M14.5 6l-6 6 6 6",
  next: "M9.5 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  tokens: "M4 7h6v4H4zM13 7h7v4h-7zM4 14h4v4H4zM11 14h9v4h-9z",
};

export function icon(name) {
  const svg = s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" });
  svg.append(s("path", { d: ICONS[name] }));
  return svg;
}

/** Puts an icon, and text if given, into an element of the page's own markup. */
export function dress(element, name, text = "") {
  element.replaceChildren(icon(name), ...(text ? [h("span", {}, text)] : []));
}

/** A small button under a message. */
export function tool(name, label, run) {
  return h("button", { type: "button", class: "tool", onclick: run }, icon(name), h("span", {}, label));
}

/** Makes a text area as high as its text. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

/** A button that copies and says so. `text` is a function, called when the button is pressed. */
export function copyButton(text, label, className = "tool") {
  const caption = h("span", {}, label);
  const button = h("button", { type: "button", class: className, onclick: copy }, icon("copy"), caption);
  let timer = 0;
  async function copy() {
    const done = await copyText(text());
    button.firstChild.replaceWith(icon(done ? "check" : "close"));
    caption.textContent = done ? "Copied" : "Could not copy";
    announce(caption.textContent);
    clearTimeout(timer);
    timer = setTimeout(() => {
      button.firstChild.replaceWith(icon("copy"));
      caption.textContent = label;
    }, 1800);
  }
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // There is no clipboard API over plain http, except from this machine.
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: "-1" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

/** Says something to a screen reader, once. */
export function announce(text) {
  const region = byId("announcer");
  region.textContent = "";
  setTimeout(() => (region.textContent = text), 60);
}

let toastTimer = 0;

/** A short note above the message box, with a button if `action` is given. */
export function toast(text, action = null) {
  const box = byId("toast");
  const hide = () => (box.hidden = true);
  const button =
    action &&
    h("button", { type: "button", class: "button small", onclick: () => (hide(), action.run()) }, action.label);
  box.replaceChildren(h("span", {}, text), ...(button ? [button] : []));
  box.hidden = false;
  const composer = byId("composer").getBoundingClientRect();
  box.style.left = `${composer.left + composer.width / 2}px`;
  box.style.bottom = `${innerHeight - composer.top + 12}px`;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, action || text.length > 60 ? 8000 : 4000);
}

/** Has the browser save a text as a file. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
