/** The cluster demo: polls the state of the parts and the messages, shows it, and kills parts on request. */

const POLL_MS = 400;
const BARS = 120; // half seconds
const BAR_FULL = 40; // messages per bar at full height, reached when a backlog arrives at once
const DESCRIPTIONS = {
  haproxy: "load balancer, clients connect here",
  gateway: "gateway, serves the clients",
  backend: "backend, stores the messages",
  etcd: "coordinator, elects leaders",
  manager: "manager of the clusters",
};
const ORDER = ["haproxy", "gateway", "backend", "etcd", "manager"];
const STATES = {up: "up", down: "killed", starting: "restarting"};
const SVG = "http://www.w3.org/2000/svg";

const element = (id) => document.getElementById(id);
const token = takeToken();
const cards = new Map();
let answered = true;

/** A URL's fragment is never sent to a server. The token in it is kept for this tab and removed from the address bar. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return given ?? sessionStorage.getItem("token") ?? "";
}

function ask(path, method = "GET") {
  return fetch(path, {method, headers: {authorization: `Bearer ${token}`}, cache: "no-store"});
}

function say(state, text) {
  const status = element("status");
  if (status.dataset.state !== state) status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

const seconds = (value) => `${value.toFixed(1)} s`;
const numbers = (values) => values.join(", ");

async function poll() {
  const answer = await ask("/state").catch(() => null);
  if (answer?.ok) show(await answer.json());
  else if (answer?.status === 401) say("bad", "Open the address printed by the command: it contains the token for this page.");
  else say("bad", "The demo itself does not respond. Is its command still running?");
  answered = Boolean(answer?.ok);
  setTimeout(poll, POLL_MS);
}

function show(now) {
  for (const name of ["confirmed", "received", "missing", "doubled", "again"]) {
    element(name).textContent = now[name].toLocaleString("en");
  }
  element("longest").textContent = seconds(now.longest_away_s);
  element("missing").parentElement.toggleAttribute("data-late", now.missing > 0);
  element("doubled").parentElement.toggleAttribute("data-bad", now.doubled > 0);
  showStatus(now);
  element("now").textContent = `now ${now.per_second} per second`;
  plot(now);
  now.parts.sort((a, b) => ORDER.indexOf(a.role) - ORDER.indexOf(b.role)).forEach(showPart);
  showEvents(now.events);
}

/** Screen readers read the status out, so it changes only with events and contains no running counter. */
function showStatus(now) {
  const down = now.parts.filter(({state}) => state !== "up").map(({name}) => name);
  const last = now.kills.at(-1);
  const are = down.length > 1 ? "are" : "is";
  if (now.away_s > 0) {
    say("away", `No service${down.length ? `: ${numbers(down)} ${are} being restarted` : ""}. Confirmed messages are safe on disk.`);
  } else if (now.missing > 0) {
    say("away", "Some confirmed messages have not arrived yet: they are redelivered when their leases expire.");
  } else if (down.length) {
    say("good", `${numbers(down)} ${are} down, but messages keep flowing.`);
  } else if (last) {
    const outage = last.away_s > 0 ? `there was no service for ${seconds(last.away_s)}` : "service never stopped";
    say("good", `${last.part} was killed: ${outage}. Nothing is missing, ${now.doubled || "nothing"} doubled.`);
  } else {
    say("good", "All parts are up.");
  }
}

function plot({bars, kills}) {
  const width = 1200 / BARS;
  const shapes = bars.map(([, received], index) => {
    const height = Math.min(1, received / BAR_FULL) * 112;
    const x = (BARS - bars.length + index) * width + 1;
    return shape("rect", {class: "bar", x, y: 120 - height, width: width - 2, height});
  });
  for (const {ago_s: ago} of kills) {
    const x = 1200 - ago * 2 * width;
    if (x >= 0) shapes.push(shape("line", {class: "kill", x1: x, x2: x, y1: 0, y2: 120}));
  }
  element("plot").replaceChildren(...shapes);
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function showPart(part) {
  const card = cards.get(part.name) ?? makeCard(part);
  card.item.dataset.state = part.state;
  card.pid.textContent = part.state === "up" ? `up, process ${part.pid}` : STATES[part.state];
  const shards = `shard${part.leads.length > 1 ? "s" : ""} ${numbers(part.leads)}`;
  card.leads.textContent = part.leads.length ? `${part.state === "up" ? "leads" : "led"} ${shards}` : "";
  card.button.disabled = part.state !== "up";
}

function makeCard({name, role}) {
  const item = document.createElement("li");
  item.className = "part";
  item.id = `part-${name}`;
  const [title, what, pid, leads, button] = ["h3", "p", "p", "span", "button"].map((tag) => document.createElement(tag));
  title.append(name);
  what.append(DESCRIPTIONS[role] ?? role);
  const line = document.createElement("p");
  pid.className = "pid";
  leads.className = "leads";
  line.append(leads);
  button.type = "button";
  button.className = "danger";
  button.textContent = "Kill";
  button.setAttribute("aria-label", `Kill ${name}`);
  button.addEventListener("click", () => kill(name, button));
  item.append(title, button, what, pid, line);
  element("parts").append(item);
  const card = {item, pid, leads, button};
  cards.set(name, card);
  return card;
}

async function kill(name, button) {
  button.disabled = true;
  const answer = await ask(`/parts/${encodeURIComponent(name)}/kill`, "POST").catch(() => null);
  if (answer && !answer.ok && answered) say("bad", await answer.text());
}

function showEvents(events) {
  const list = element("events");
  const newest = events[0]?.at_s ?? "";
  if (!events.length || list.dataset.newest === String(newest)) return;
  list.dataset.newest = newest;
  list.replaceChildren(...events.map(({at_s: at, kind, text}) => {
    const item = document.createElement("li");
    item.className = kind;
    const time = document.createElement("time");
    time.textContent = new Date(at * 1000).toLocaleTimeString("en-GB");
    const description = document.createElement("span");
    description.textContent = text;
    item.append(time, description);
    return item;
  }));
}

poll();
