// Draws every figure of the page with the colours of its style sheet, and again when these change.
(() => {
  "use strict";
  if (!window.Plotly) return;
  const styles = () => getComputedStyle(document.documentElement);
  const resolve = (value, look) => {
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((entry) => resolve(entry, look));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, resolve(entry, look)]));
    const name = typeof value === "string" && /^var\((--[a-z-]+)\)$/.exec(value);
    return name ? look.getPropertyValue(name[1]).trim() : value;
  };
  const draw = () => {
    const look = styles();
    for (const place of document.querySelectorAll(".plot")) {
      const figure = resolve(JSON.parse(place.nextElementSibling.textContent), look);
      figure.layout.font.family = getComputedStyle(place).fontFamily;
      if (place.clientWidth < 480) {
        figure.layout.font.size = 12;
        figure.layout.margin.l = 46;
        figure.layout.margin.r = 4;
      }
      Plotly.react(place, figure.data, figure.layout, { responsive: true, displayModeBar: false, scrollZoom: false });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);
})();
