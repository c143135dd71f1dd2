// The frame: tabs, theme, and the two side panels, which become drawers in a narrow window.

import { byId, dress } from "./elements.js";
import { loadTheme, saveTheme } from "./store.js";

const TABS = ["settings", "live", "code"];
const NEXT_THEME = { system: "light", light: "dark", dark: "system" };
const THEME_LOOK = { system: ["auto", "System"], light: ["sun", "Light"], dark: ["moon", "Dark"] };

export class Layout {
  /** `changed()` is called when another panel comes into view; `open` says whether the inspector starts open. */
  constructor({ changed, remember, open }) {
    this.changed = changed;
    this.remember = remember;
    this.tab = "settings";
    this.drawer = null;
    this.narrow = { sidebar: matchMedia("(max-width: 820px)"), inspector: matchMedia("(max-width: 1120px)") };
    this.inspectorOpen = open;
  }

  start() {
    this.dress();
    this.listen();
    this.apply();
  }

  /** Whether a panel of the inspector can be seen. */
  sees(tab) {
    const shown = this.narrow.inspector.matches ? this.drawer === "inspector" : this.inspectorOpen;
    return shown && this.tab === tab;
  }

  closeDrawer() {
    if (!this.drawer) return false;
    const opener = byId(this.drawer === "sidebar" ? "sidebar-open" : "inspector-toggle");
    this.drawer = null;
    this.apply();
    opener.focus();
    return true;
  }

  openDrawer(name) {
    this.drawer = name;
    this.apply();
    byId(`${name}-close`).focus();
  }

  /** Brings the settings into view. */
  showSettings() {
    this.select("settings");
    if (this.narrow.inspector.matches) return this.openDrawer("inspector");
    if (!this.inspectorOpen) this.toggleInspector();
  }

  dress() {
    dress(byId("sidebar-open"), "menu");
    dress(byId("inspector-toggle"), "sliders");
    dress(byId("sidebar-close"), "close");
    dress(byId("inspector-close"), "close");
    dress(byId("jump"), "down", "Latest");
    dress(byId("shortcuts-open"), "keyboard");
    this.showTheme(loadTheme());
  }

  listen() {
    byId("sidebar-open").addEventListener("click", () => this.openDrawer("sidebar"));
    byId("inspector-toggle").addEventListener("click", () => this.toggleInspector());
    for (const id of ["sidebar-close", "inspector-close", "scrim"])
      byId(id).addEventListener("click", () => this.closeDrawer());
    byId("shortcuts-open").addEventListener("click", () => byId("shortcuts").showModal());
    for (const query of Object.values(this.narrow)) query.addEventListener("change", () => this.apply());
    byId("theme").addEventListener("click", () => this.showTheme(NEXT_THEME[loadTheme()] ?? "system", true));
    for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => this.select(name));
    byId("inspector")
      .querySelector("[role=tablist]")
      .addEventListener("keydown", (event) => this.moveTab(event));
  }

  toggleInspector() {
    if (this.narrow.inspector.matches) return this.openDrawer("inspector");
    this.inspectorOpen = !this.inspectorOpen;
    this.remember(this.inspectorOpen);
    this.apply();
  }

  select(name) {
    this.tab = name;
    for (const tab of TABS) {
      byId(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
      byId(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
      byId(`panel-${tab}`).hidden = tab !== name;
    }
    this.changed();
  }

  moveTab(event) {
    const at = TABS.indexOf(this.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = TABS[(to + TABS.length) % TABS.length];
    this.select(name);
    byId(`tab-${name}`).focus();
  }

  apply() {
    if (this.drawer && !this.narrow[this.drawer].matches) this.drawer = null;
    const hidden = {
      sidebar: this.narrow.sidebar.matches && this.drawer !== "sidebar",
      inspector: this.narrow.inspector.matches ? this.drawer !== "inspector" : !this.inspectorOpen,
    };
    for (const name of ["sidebar", "inspector"]) {
      byId(name).classList.toggle("away", hidden[name]);
      byId(name).classList.toggle("over", this.drawer === name);
      byId(name).inert = hidden[name] || (this.drawer !== null && this.drawer !== name);
    }
    byId("main").inert = this.drawer !== null;
    byId("scrim").hidden = this.drawer === null;
    byId("app").classList.toggle("no-inspector", hidden.inspector);
    byId("sidebar-open").setAttribute("aria-expanded", String(this.drawer === "sidebar"));
    byId("inspector-toggle").setAttribute("aria-expanded", String(!hidden.inspector));
    this.changed();
  }

  showTheme(theme, chosen = false) {
    if (chosen) saveTheme(theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const [icon, label] = THEME_LOOK[theme] ?? THEME_LOOK.system;
    dress(byId("theme"), icon);
    byId("theme").setAttribute("aria-label", `Theme: ${label}. Change it`);
    byId("theme").title = `Theme: ${label}`;
  }
}
