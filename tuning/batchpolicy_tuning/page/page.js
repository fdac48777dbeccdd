"use strict";
// Draws the plots one after the other, so that the page can be read meanwhile.
(() => {
  const root = document.documentElement;
  const fail = (what) => {
    root.dataset.fault = String(what);
    throw what;
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = JSON.parse(document.getElementById("plots").textContent);

  // "--name" or "--name/0.4": a colour of the style sheet, and how opaque it is.
  const colour = (text) => {
    const [name, alpha] = text.split("/");
    const value = getComputedStyle(root).getPropertyValue(name).trim();
    if (!alpha) return value;
    const part = (i) => parseInt(value.slice(i, i + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
  };
  const COLOURED = new Set(["color", "fillcolor", "fgcolor", "bgcolor", "bordercolor"]);
  const resolved = (value, key) => {
    if (typeof value === "string") {
      return COLOURED.has(key) && value.startsWith("--") ? colour(value) : value;
    }
    if (Array.isArray(value)) return value.map((one) => resolved(one, key));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, one]) => [k, resolved(one, k)]));
  };

  // An axis that has its own ticks, or counts something else than seconds, names a format.
  const timed = (x) => x.type === "log" && !x.tickformat;
  // Round times on a logarithmic axis between two powers of ten: 1, 2, 5, 10 ms or 1.2, 1.3 s.
  const named = (s) => s < 1 ? `${+(1000 * s).toPrecision(4)} ms` : `${+s.toPrecision(4)} s`;
  const times = (low, high) => {
    const inside = (leads) => {
      const found = [];
      for (let k = Math.floor(low); k <= high; k += 1) found.push(...leads.map((n) => n * 10 ** k));
      return found.filter((s) => s >= 10 ** low && s <= 10 ** high);
    };
    let found = [[1, 2, 5], [1, 3], [1]].map(inside).find((some) => some.length <= 5) ?? inside([1]);
    if (found.length < 2) {
      const rough = (10 ** high - 10 ** low) / 3;
      const step = 10 ** Math.floor(Math.log10(rough));
      const round = step * [1, 2, 5, 10].find((n) => n * step >= rough);
      found = [];
      for (let s = Math.ceil(10 ** low / round) * round; s <= 10 ** high; s += round) found.push(s);
    }
    return { tickvals: found, ticktext: found.map(named) };
  };

  const axis = {
    gridcolor: "--rule", linecolor: "--rule", zerolinecolor: "--rule", automargin: true,
    tickangle: 0, tickfont: { size: 12 },
  };
  // resolved() looks at keys, and these three are colours as well.
  for (const key of ["gridcolor", "linecolor", "zerolinecolor", "paper_bgcolor", "plot_bgcolor"]) {
    COLOURED.add(key);
  }
  const dressed = (layout) => {
    const x = layout.xaxis;
    const full = {
      showlegend: false, paper_bgcolor: "--panel", plot_bgcolor: "--panel", dragmode: "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "--ink" },
      hoverlabel: {
        bgcolor: "--panel", bordercolor: "--muted", font: { color: "--ink", size: 12 },
        align: "left", namelength: -1,
      },
      ...layout,
    };
    for (const key of Object.keys(full).filter((one) => /^[xy]axis/.test(one))) {
      full[key] = { ...axis, ...full[key] };
    }
    if (timed(x)) full.xaxis = { ...full.xaxis, ...times(...x.range) };
    return resolved(full, "");
  };
  const settings = {
    responsive: true, displayModeBar: false, showTips: false, doubleClick: "reset",
  };
  // After zooming in: other ticks.
  const follow = (plot, range) => plot.on("plotly_relayout", (event) => {
    const low = event["xaxis.range[0]"] ?? event["xaxis.range"]?.[0] ?? range[0];
    const high = event["xaxis.range[1]"] ?? event["xaxis.range"]?.[1] ?? range[1];
    if ("xaxis.tickvals" in event) return;
    const { tickvals, ticktext } = times(low, high);
    Plotly.relayout(plot, { "xaxis.tickvals": tickvals, "xaxis.ticktext": ticktext });
  });

  const draw = (i) => {
    if (i === plots.length) {
      root.dataset.plots = `${i} of ${plots.length}`;
      return;
    }
    const { id, data, layout } = plots[i];
    const first = !document.getElementById(id).data;
    Plotly.react(id, resolved(data, ""), dressed(layout), settings).then((plot) => {
      if (first && timed(layout.xaxis)) follow(plot, layout.xaxis.range);
      setTimeout(draw, 0, i + 1);
    }, fail);
  };
  window.addEventListener("error", (event) => { root.dataset.fault = event.message; });
  dark.addEventListener("change", () => draw(0));
  draw(0);
})();
