"use strict";
// The threshold explorer: everything is counted anew from the scores of every state.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = text => Uint8Array.from(atob(text), each => each.charCodeAt(0));
const logits = new Int16Array(bytes(data.logits).buffer); // thousandths
const labels = new Int8Array(bytes(data.labels).buffer); // 1 success, 0 failure, -1 unlabelled
const element = id => document.getElementById(id);
const sigmoid = x => 1 / (1 + Math.exp(-x));

let low = Infinity, high = -Infinity;
for (const each of logits) { low = Math.min(low, each); high = Math.max(high, each); }
low = Math.max(-9, Math.min(low / 1000, data.threshold) - 0.2);
high = Math.min(12, Math.max(high / 1000, 0.5) + 0.2);
high = Math.max(high, data.threshold + 0.2);

// What happens to one episode: where the gate first fires, and whether a success was there by then.
function judge(start, stop, limit, k, n) {
  let says = 0, first = -1;
  for (let t = start; t < stop; t++) {
    says += logits[t] >= limit;
    if (t - n >= start) says -= logits[t - n] >= limit;
    if (labels[t] === 1 && first < 0) first = t;
    if (says >= k && labels[t] !== -1) {
      if (first >= 0) return { fire: t - start, kind: "detected", steps: t - first };
      return { fire: t - start, kind: labels.subarray(t, stop).includes(1) ? "early" : "paid", steps: -1 };
    }
  }
  const known = labels.subarray(start, stop).includes(0);
  return { fire: -1, kind: first >= 0 ? "missed" : known ? "refused" : "unlabelled", steps: -1 };
}

function episodes(threshold, k, n) {
  const count = { paid: 0, refused: 0, detected: 0, early: 0, missed: 0, unlabelled: 0 }, steps = [], limit = threshold * 1000;
  let start = 0;
  for (const size of data.sizes) {
    const found = judge(start, start + size, limit, k, n);
    count[found.kind]++;
    if (found.kind === "detected") steps.push(found.steps);
    start += size;
  }
  steps.sort((a, b) => a - b);
  return { ...count, failing: count.paid + count.refused, winning: count.detected + count.early + count.missed,
    steps: steps.length ? steps[Math.ceil(steps.length / 2) - 1] : NaN };
}

function frames(threshold) {
  const limit = threshold * 1000;
  let truePositive = 0, falsePositive = 0, success = 0, failure = 0;
  for (let t = 0; t < labels.length; t++) {
    if (labels[t] === 1) { success++; truePositive += logits[t] >= limit; }
    else if (labels[t] === 0) { failure++; falsePositive += logits[t] >= limit; }
  }
  return { precision: truePositive / (truePositive + falsePositive), recall: truePositive / success, fpr: falsePositive / failure };
}

function wilson(yes, of) {
  const z = 1.959964, share = yes / of, scale = 1 + z * z / of;
  const centre = (share + z * z / (2 * of)) / scale;
  const half = z * Math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / scale;
  return [yes ? centre - half : 0, yes < of ? centre + half : 1];
}

const percent = x => Number.isNaN(x) ? "–" : (100 * x).toFixed(x > 0 && x < 0.9995 ? 1 : 0) + " %";
const rate = (yes, of) => !of ? "–" : `${yes} of ${of} = ${percent(yes / of)}<small>${wilson(yes, of).map(percent).join(" – ")}</small>`;
const likely = x => { for (const digits of [3, 4, 5]) { const text = x.toFixed(digits); if (text > 0 && text < 1) return text; } return x.toPrecision(3); };
const gate = () => [Number(element("k").value), Number(element("n").value)];

// The chart stands right above the slider, with the same ends as the middle of its thumb.
const chart = { left: 8, right: 632, top: 10, bottom: 190 };
const across = z => chart.left + (chart.right - chart.left) * (z - low) / (high - low);
const up = share => chart.bottom - (chart.bottom - chart.top) * share;
function sweep() {
  const [k, n] = gate(), lines = { detected: "", paid: "", early: "" }, points = 160;
  for (let i = 0; i <= points; i++) {
    const z = low + (high - low) * i / points, found = episodes(z, k, n), x = across(z).toFixed(1);
    if (found.winning) lines.detected += `${x},${up(found.detected / found.winning).toFixed(1)} `;
    if (found.winning) lines.early += `${x},${up(found.early / found.winning).toFixed(1)} `;
    if (found.failing) lines.paid += `${x},${up(found.paid / found.failing).toFixed(1)} `;
  }
  let marks = "";
  for (const share of [0, 0.5, 1]) {
    marks += `<line class="grid" x1="${chart.left}" y1="${up(share)}" x2="${chart.right}" y2="${up(share)}"/>` +
      `<text class="tick" x="${chart.left}" y="${up(share) - 4}">${100 * share} %</text>`;
  }
  for (const p of [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999]) {
    const z = Math.log(p / (1 - p));
    if (z > low + 0.5 && z < high - 0.5) marks += `<text class="tick" text-anchor="middle" x="${across(z)}" y="${chart.bottom + 19}">${p}</text>`;
  }
  element("sweep").innerHTML = marks +
    `<line class="chosen" x1="${across(data.threshold)}" x2="${across(data.threshold)}" y1="${chart.top}" y2="${chart.bottom}"/>` +
    `<polyline class="early" points="${lines.early}"/><polyline class="bad" points="${lines.paid}"/>` +
    `<polyline class="good" points="${lines.detected}"/><line class="now" id="now" y1="${chart.top}" y2="${chart.bottom + 4}"/>`;
}

const shown = [...document.querySelectorAll(".episode")].map(article => {
  const place = data.ids.indexOf(article.dataset.id);
  let start = 0;
  for (let i = 0; i < place; i++) start += data.sizes[i];
  return { place, start, size: data.sizes[place], limit: article.querySelector(".limit"), fire: article.querySelector(".fire") };
});

function move() {
  const threshold = Number(element("threshold").value), [k, n] = gate();
  const found = episodes(threshold, k, n), single = frames(threshold), p = sigmoid(threshold);
  element("said").textContent = likely(p);
  element("paid").innerHTML = rate(found.paid, found.failing);
  element("detected").innerHTML = rate(found.detected, found.winning);
  element("early").innerHTML = rate(found.early, found.winning);
  element("missed").innerHTML = rate(found.missed, found.winning);
  element("steps").textContent = Number.isNaN(found.steps) ? "–" : found.steps;
  for (const name of ["precision", "recall", "fpr"]) element(name).textContent = percent(single[name]);
  element("now").setAttribute("x1", across(threshold));
  element("now").setAttribute("x2", across(threshold));
  for (const each of shown) {
    if (each.place < 0) continue;
    const y = 78 - 72 * p, one = judge(each.start, each.start + each.size, threshold * 1000, k, n);
    each.limit.setAttribute("y1", y);
    each.limit.setAttribute("y2", y);
    each.fire.setAttribute("class", "fire " + (one.kind === "detected" ? "good" : "bad"));
    each.fire.setAttribute("transform", `translate(${one.fire < 0 ? -99 : 720 * (one.fire + 0.5) / each.size} 0)`);
    each.fire.style.display = one.fire < 0 ? "none" : "";
  }
}

const slider = element("threshold");
slider.min = low; slider.max = high; slider.step = "any"; slider.value = data.threshold;
slider.addEventListener("input", move);
for (const id of ["k", "n"]) {
  element(id).addEventListener("change", () => {
    const [k, n] = gate();
    if (k > n) element(id === "k" ? "n" : "k").value = id === "k" ? k : n;
    sweep(); move();
  });
}
element("reset").addEventListener("click", () => {
  slider.value = data.threshold; element("k").value = data.k; element("n").value = data.n;
  sweep(); move();
});
sweep();
move();
