// The console's own script: live state and pause, plots, theme and keys. What a page shows is made on the server.

const STALE_MS = 12_000; // a page that heard nothing for so long says so, or for three looks of one that looks seldom
const LOOK_MS = 1_000;
const AGAIN_MS = 5_000; // until a page that the server would not keep live asks again

const live = document.getElementById("live");
const state = document.getElementById("live-state");
const pause = document.getElementById("pause");
let isPaused = false;
let refusal = ""; // what the server said instead of keeping this page live
let isBehind = false; // something changed while the page was paused
let heard = Date.now();
let period = 2_000;

function say(kind, text) {
  if (!state) return;
  const words = state.querySelector("[role=status]");
  if (state.dataset.state !== kind) state.dataset.state = kind;
  if (words.textContent !== text) words.textContent = text;
}

function look() {
  if (isPaused) return say("paused", "Paused");
  if (state.dataset.state === "over") return;
  if (refusal) return say("stale", refusal);
  const silent = Date.now() - heard;
  if (silent > Math.max(STALE_MS, 3 * period)) say("stale", `Stale: nothing new for ${Math.round(silent / 1000)} s`);
  else if (state.dataset.state !== "waiting") say("live", "Live");
}

function refused(status) {
  if (status === 401) return say("over", "Signed out: load the page again");
  refusal = status === 429 ? "Not live: too many live pages are open; close some" : "Not live: the server refused the connection";
  look();
  setTimeout(() => htmx.ajax("GET", live.getAttribute("hx-sse:connect"), { source: live }), AGAIN_MS);
}

function lost() {
  if (state.dataset.state === "live" && !isPaused) say("waiting", "Connection lost: connecting again…");
}

function setPaused(wanted) {
  isPaused = wanted;
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.textContent = isPaused ? "Go on" : "Pause";
  if (!isPaused && isBehind) {
    // The server tells each change once: what was withheld comes at the beginning of the next connection.
    isBehind = false;
    say("waiting", "Connecting…");
    live._htmx?.sse?.reader?.cancel();
  } else if (!isPaused) say("live", "Live");
  look();
}

if (state) {
  document.addEventListener("htmx:sse:before:message", (event) => {
    const message = event.detail.message;
    if (message.event === "signed-out" || message.event === "gone") {
      say("over", message.event === "gone" ? "Over: what this page shows has gone" : "Signed out: load the page again");
      return;
    }
    if (message.event === "looked") period = 1_000 * Number(message.data) || period;
    heard = Date.now();
    refusal = "";
    if (state.dataset.state === "waiting" || state.dataset.state === "stale") say("live", "Live");
    if (isPaused && !message.event) {
      isBehind = true;
      event.preventDefault();
    }
  });
  document.addEventListener("htmx:sse:after:message", draw);
  document.addEventListener("htmx:before:response", (event) => {
    const { raw, status } = event.detail.ctx.response;
    if (raw.headers.get("Content-Type")?.includes("text/event-stream")) return;
    event.preventDefault(); // it would take the place of what the page shows
    refused(status);
  });
  document.addEventListener("htmx:error", () => refused(0));
  document.addEventListener("htmx:sse:error", (event) => (event.detail.status === 401 ? refused(401) : lost()));
  document.addEventListener("htmx:sse:before:connection", (event) => state.dataset.state === "over" && event.preventDefault());
  pause.addEventListener("click", () => setPaused(!isPaused));
  setInterval(look, LOOK_MS);
  // A browser keeps a page that was left, and its connection with it; it has only six of them for one server.
  addEventListener("pagehide", () => live._htmx?.sse?.reader?.cancel());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

// A form that was refused is answered with its page: loaded again, that page comes, and nothing is sent a second time.
const here = document.getElementById("main").dataset.here;
if (location.pathname.startsWith("/console/do/") || (here && location.pathname === "/console/login")) history.replaceState(null, "", here ?? "/console");

// ---------------------------------------------------------------------------------------------------------- forms

// A form that is sent to a server that is gone would leave the browser's error page in place of what was typed.
const GONE = [502, 503, 504]; // from a proxy whose server is gone

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented || form.dataset.isChecked) return;
  event.preventDefault();
  if (form.dataset.isAsking) return; // pressed twice
  form.dataset.isAsking = "yes";
  const isThere = await fetch("/static/favicon.svg", { method: "HEAD", cache: "no-store" }).then((answer) => !GONE.includes(answer.status), () => false);
  delete form.dataset.isAsking;
  form.querySelector(".unsent")?.remove();
  if (!isThere) {
    const said = document.createElement("strong");
    said.className = "wrong unsent";
    said.setAttribute("role", "alert");
    said.textContent = "The server does not answer. Nothing was sent; try again.";
    form.append(said);
    return;
  }
  form.dataset.isChecked = "yes";
  form.requestSubmit(event.submitter);
  delete form.dataset.isChecked;
});

// ---------------------------------------------------------------------------------------------------------- plots

const plots = new WeakMap();
const DASHES = [[], [6, 4], [2, 3]];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const two = (part) => String(part).padStart(2, "0");
// In UTC, as the tables beside it, logs and the command line.
const dayOf = (at) => `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
const clockOf = (at, hasSeconds) => [at.getUTCHours(), at.getUTCMinutes(), ...(hasSeconds ? [at.getUTCSeconds()] : [])].map(two).join(":");

// Of the marks below a plot: 24 hours, and the day where another one begins.
function marks(plot, splits, axis, space, step) {
  let before = null;
  return splits.map((split) => {
    const at = new Date(split * 1000);
    const day = dayOf(at);
    const text = clockOf(at, step < 60) + (day === before ? "" : `\n${day}`);
    before = day;
    return text;
  });
}

const AGES = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"], [0, "ms"]];
const SIZES = [[1024 ** 4, "TiB"], [1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"], [0, "B"]];

// Distances between the marks of an axis, so that they are round in the unit that is shown.
const STEPS = {
  age: [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200].map((s) => s * 1_000), ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000].map((d) => d * 86_400_000)],
  bytes: Array.from({ length: 54 }, (_, power) => 2 ** power),
};

// Where an axis ends whose values are all zero.
const ENDS = { age: 1_000, bytes: 1024 };

function ends(unit, low, high) {
  if (low === 0 && high === 0) return [0, ENDS[unit] ?? 10];
  return low == null ? [null, null] : uPlot.rangeNum(low, high, 0.1, true);
}

// A value as a plot of this unit says it: short, for there is little room.
function said(unit, value) {
  if (value == null) return "–";
  const steps = { age: AGES, bytes: SIZES }[unit];
  if (!steps) return value.toLocaleString("en", { maximumFractionDigits: 2 }).replaceAll(",", "\u202f");
  if (value === 0) return "0";
  const [size, name] = steps.find(([size]) => Math.abs(value) >= size);
  return `${Number((value / (size || 1)).toFixed(1))} ${name}`;
}

function draw() {
  for (const figure of document.querySelectorAll("figure[data-series]")) {
    const text = figure.dataset.series;
    const known = plots.get(figure);
    if (known && known.text === text) continue;
    const { start_ms, step_ms, lines } = JSON.parse(text);
    const names = Object.keys(lines);
    const times = lines[names[0]].map((_, index) => (start_ms + index * step_ms) / 1000);
    const data = [times, ...names.map((name) => lines[name])];
    if (known) {
      known.plot.setData(data);
      known.text = text;
      continue;
    }
    const host = figure.querySelector(".canvas");
    const colours = [colour("--accent"), colour("--good"), colour("--bad")];
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const unit = figure.dataset.unit;
    const series = names.map((name, index) => ({
      label: name, stroke: colours[index], width: 2, dash: DASHES[index], value: (_, value) => said(unit, value),
    }));
    const time = { label: "Time (UTC)", value: (_, at) => (at == null ? "–" : `${dayOf(new Date(at * 1000))} ${clockOf(new Date(at * 1000), true)}`) };
    const axes = [
      { ...axis, space: 80, values: marks },
      { ...axis, size: 76, ...(STEPS[unit] && { incrs: STEPS[unit] }), values: (_, splits) => splits.map((value) => said(unit, value)) },
    ];
    const plot = new uPlot(
      {
        width: host.clientWidth || 300, height: 170, series: [time, ...series], axes, cursor: { y: false },
        scales: { y: { range: (_, low, high) => ends(unit, low, high) } },
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      },
      data,
      host,
    );
    const observer = new ResizeObserver(() => plot.setSize({ width: host.clientWidth, height: 170 }));
    observer.observe(host);
    plots.set(figure, { plot, text, observer });
  }
}

// Plots have the colours of the theme in which they were drawn.
function drawAnew() {
  for (const figure of document.querySelectorAll("figure[data-series]")) {
    const known = plots.get(figure);
    if (!known) continue;
    known.observer.disconnect();
    known.plot.destroy();
    plots.delete(figure);
  }
  draw();
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);

// ---------------------------------------------------------------------------------------------------------- theme

const THEMES = ["auto", "light", "dark"];
const theme = document.getElementById("theme");
if (theme) {
  let chosen = document.documentElement.dataset.theme ?? "auto";
  theme.textContent = `Theme: ${chosen}`;
  theme.addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    theme.textContent = `Theme: ${chosen}`;
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    localStorage.setItem("pushq-theme", chosen);
    drawAnew();
  });
}

// ----------------------------------------------------------------------------------------------------------- copy

const copy = document.getElementById("copy");

// The clipboard of today is for HTTPS and loopback alone; elsewhere the secret is selected, and copied as by hand.
async function copySecret() {
  const secret = document.querySelector("code.secret");
  const isWritten = await navigator.clipboard?.writeText(secret.textContent).then(() => true, () => false);
  if (!isWritten) getSelection().selectAllChildren(secret);
  const isCopied = isWritten || document.execCommand("copy");
  document.getElementById("copied").textContent = isCopied ? "Copied" : "Not copied: the secret is selected, copy it by hand";
}

if (copy) {
  copy.hidden = false; // without scripts it would do nothing
  copy.addEventListener("click", copySecret);
}

// ----------------------------------------------------------------------------------------------------------- menu

// On a narrow screen the menu scrolls: the current view's link begins in its middle.
const menu = document.querySelector("nav.menu");
const current = menu?.querySelector("[aria-current]");
if (current) menu.scrollLeft = current.offsetLeft - menu.offsetLeft - (menu.clientWidth - current.offsetWidth) / 2;

// ----------------------------------------------------------------------------------------------------------- keys

let isGoing = false;

function move(step) {
  const links = [...document.querySelectorAll("tbody th a")];
  if (!links.length) return;
  const place = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, place + step))].focus();
}

// A form that was opened closes again, and the focus is back where it was opened.
function closeForm(within) {
  const form = within.closest("details.act[open]");
  if (!form) return;
  form.open = false;
  form.querySelector("summary").focus();
}

// In a table that is wider than its page a form may open beyond the edge.
document.addEventListener("toggle", (event) => {
  if (event.target.matches("td details.act[open]")) event.target.querySelector("form").scrollIntoView({ block: "nearest", inline: "nearest" });
}, true);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return closeForm(event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  const key = event.key;
  if (isGoing) {
    isGoing = false;
    const link = document.querySelector(`nav.menu a[data-key="${CSS.escape(key)}"]`);
    if (link) location.assign(link.href);
    return;
  }
  if (key === "g") isGoing = true;
  else if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "p" && pause) setPaused(!isPaused);
  else if (key === "?") location.assign("/console/help");
  else if (key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  }
});
