/* One figure that follows the system's light or dark mode, and whose buttons the keyboard reaches. */
(async () => {
  "use strict";
  const DATA = JSON.parse(document.getElementById("data").textContent), chart = document.getElementById("chart");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  /* A figure with every light colour that the page knows in its dark counterpart. */
  function darkened(value) {
    if (typeof value === "string") return DATA.dark[value] ?? value;
    if (Array.isArray(value)) return value.map(darkened);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, inside]) => [name, darkened(inside)]));
  }
  async function draw() {
    const figure = dark.matches ? darkened(DATA.figure) : structuredClone(DATA.figure);
    await Plotly.react(chart, figure.data, figure.layout, { displaylogo: false, responsive: true, displayModeBar: true });
    for (const button of chart.querySelectorAll(".modebar-btn")) {
      button.setAttribute("tabindex", "0");
      button.setAttribute("role", "button");
      button.setAttribute("aria-label", button.dataset.title);
    }
  }
  await plotlyReady();
  await draw();
  chart.addEventListener("keydown", (event) => {
    if (event.target.matches(".modebar-btn") && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    }
  });
  dark.addEventListener("change", draw);
  document.documentElement.dataset.drawn = "yes";
})();
