// Run in the page by the tests: checks by hand what an accessibility checker would.
(() => {
  const visible = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest("[inert]");

  function nameOf(element) {
    const by = element.getAttribute("aria-labelledby");
    if (by)
      return by
        .split(" ")
        .map((id) => document.getElementById(id)?.textContent ?? "")
        .join(" ")
        .trim();
    const label = element.getAttribute("aria-label") ?? [...(element.labels ?? [])].map((l) => l.textContent).join(" ");
    return (label || element.textContent || element.getAttribute("alt") || "").trim();
  }

  function rgba(text) {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }

  function background(element) {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 0.99) return color;
    }
    return [255, 255, 255, 1];
  }

  function luminance([r, g, b]) {
    const [x, y, z] = [r, g, b]
      .map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  }

  function contrast(element) {
    const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(background(element))].sort(
      (x, y) => y - x,
    );
    return (a + 0.05) / (b + 0.05);
  }

  const ownText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const describe = (element) =>
    `${element.tagName.toLowerCase()}.${element.className} "${(element.textContent || element.id).slice(0, 30)}"`;
  const controls = "button, summary, input, textarea, select, a[href], [role=button], [role=tab], [tabindex='0']";
  const all = (selector) => [...document.querySelectorAll(selector)].filter(visible);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const referring = ["aria-controls", "aria-describedby", "aria-labelledby", "aria-errormessage", "for"];

  return {
    nameless: [...all(controls), ...all("img:not([alt])")].filter((element) => !nameOf(element)).map(describe),
    pale: all("body *")
      .filter((e) => ownText(e) && e.closest("svg") === null && !e.matches("option, .skip-link"))
      .filter((e) => contrast(e) < 4.5)
      .map((e) => `${describe(e)} ${contrast(e).toFixed(2)}`),
    doubled: ids.filter((id, i) => ids.indexOf(id) !== i),
    dangling: referring.flatMap((name) =>
      [...document.querySelectorAll(`[${name}]`)]
        .filter((e) =>
          e
            .getAttribute(name)
            .split(" ")
            .some((id) => !document.getElementById(id)),
        )
        .map((e) => `${name} of ${describe(e)}`),
    ),
    small: all("button, summary")
      .filter((e) => !e.matches(".visually-hidden"))
      .filter((e) => e.getBoundingClientRect().width < 24 || e.getBoundingClientRect().height < 24)
      .map(describe),
    inline: document.querySelectorAll("script:not([src]), style, [onclick], [onerror], [onload]").length,
    lang: document.documentElement.lang,
    landmarks: [document.querySelectorAll("main").length, document.querySelectorAll("nav").length],
  };
})();
