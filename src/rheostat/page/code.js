"use strict";
(async () => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const content = read("content"), charts = read("charts");
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  const views = {};
  const show = async (id, name, values) => {
    if (!(id in charts)) return;
    if (id in views) {
      await views[id].data(name, values).runAsync();
    } else {
      const chart = { ...charts[id], datasets: { ...charts[id].datasets, [name]: values } };
      views[id] = (await vegaEmbed(`#${id}`, chart, { renderer: "svg", actions: false })).view;
    }
  };
  const short = (n) => n >= 1e9 ? `${(n / 1e9).toFixed(2)}G` : n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : `${(n / 1e3).toFixed(0)}k`;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const full = content.evaluated[content.evaluated.length - 1];
  const slider = document.getElementById("budget");

  const row = (cells, heads = "first") => {
    const line = document.createElement("tr");
    cells.forEach((text, i) => {
      const isHead = heads === "all" || i === 0;
      const cell = document.createElement(isHead ? "th" : "td");
      if (isHead) cell.scope = heads === "all" ? "col" : "row";
      cell.textContent = text;
      line.append(cell);
    });
    return line;
  };
  const table = document.querySelector("#table tbody");
  for (const e of content.evaluated) {
    const ms = e.ms === null ? "not measured" : `${e.ms.toFixed(2)} ms${e.measured ? "" : " (predicted)"}`;
    table.append(row([
      String(e.budget), `${e.accuracy.toFixed(2)} %`, `${e.low.toFixed(2)} to ${e.high.toFixed(2)}`,
      `${e.macro_f1.toFixed(2)} %`, e.drop.toFixed(2), ms,
    ]));
  }
  const keptHead = document.querySelector("#kept-table thead");
  keptHead.replaceChildren(row(["layer", ...content.facts.heads.map((_, i) => String(i + 1))], "all"));

  const turn = async () => {
    const now = content.budgets[Number(slider.value)];
    const known = content.evaluated.filter((e) => e.share <= now.budget + 1e-9);
    const scored = known.length ? known[known.length - 1] : null;
    const exact = scored !== null && Math.abs(scored.share - now.budget) < 1e-9;
    const time = now.ms === null ? "" : `, ${now.ms.toFixed(2)} milliseconds`;
    const score = scored === null ? "" : `, accuracy ${scored.accuracy.toFixed(1)} percent`;
    slider.setAttribute("aria-valuetext", `budget ${now.budget.toFixed(3)}${time}${score}`);
    set("now-budget", now.budget.toFixed(3));
    set("now-macs", short(now.macs));
    set("now-params", short(now.params));
    set("now-ms-name", now.ms === null || now.measured ? "latency" : "latency, predicted");
    set("now-ms", now.ms === null ? "not certified" : `${now.ms.toFixed(2)} ms`);
    set("now-accuracy-name", exact || scored === null ? "accuracy" : `accuracy at ${scored.budget}, the next below`);
    set("now-accuracy", scored === null ? "not evaluated" : `${scored.accuracy.toFixed(2)} %`);
    set("now-kept", `${sum(now.heads)}, ${sum(now.neurons)}`);
    const sizes = { heads: content.facts.heads, neurons: content.facts.neurons };
    const bars = ["heads", "neurons"].flatMap((kind) => now[kind].map((count, i) => ({
      layer: i + 1, kind, count, of: sizes[kind][i], percent: 100 * count / sizes[kind][i],
    })));
    document.querySelector("#kept-table tbody").replaceChildren(row(["heads", ...now.heads]), row(["neurons", ...now.neurons]));
    [...table.children].forEach((line, i) => {
      if (content.evaluated[i] === scored) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
    });
    const changes = [show("curve", "chosen", [{ x: now.ms === null ? now.budget : now.ms }]), show("kept", "kept", bars)];
    const knowsClasses = scored !== null && scored.class_f1.length > 0;
    document.getElementById("classes").hidden = !knowsClasses;
    if (knowsClasses) {
      set("classes-note", `F1 at budget ${scored.budget} less that of the full model.`);
      changes.push(show("classes", "classes", scored.class_f1.map((f1, i) => ({
        label: content.facts.labels[i], f1, change: f1 - full.class_f1[i],
      }))));
    } else {
      set("classes-note", "Not known for this budget.");
    }
    await Promise.all(changes);
  };
  await turn();
  slider.addEventListener("input", turn);
  document.body.dataset.ready = "true";
})();
