/** The demo: creates the queues, connects the clients of every card, and lets the user break things. */

import {Chat} from "./chat.js";
import {ClientRoom} from "./clients.js";
import {Jobs} from "./jobs.js";
import {Load} from "./load.js";
import {FrameLog} from "./log.js";
import {Notifications} from "./notifications.js";

const QUEUES = {
  "demo.load": {},
  "demo.jobs": {},
  "demo.progress": {kind: "stream"},
  "demo.chat": {kind: "stream"},
  "demo.notifications": {kind: "stream"},
};

const element = (id) => document.getElementById(id);
const say = (text) => (element("status").textContent = text);

const log = new FrameLog(element("log"), element("log-of"), element("log-pause"));
const room = new ClientRoom(element("clients"), log);
const cards = [new Load(room), new Notifications(room), new Chat(room), new Jobs(room)];

async function createQueues() {
  for (const [queue, config] of Object.entries(QUEUES)) {
    const answer = await room.request("PUT", `/v1/queues/${queue}`, config);
    if (!answer.ok) throw new Error(`queue ${queue}: ${(await answer.json()).detail}`);
  }
}

async function openAll(transport) {
  room.transport = transport;
  await Promise.all(cards.map((card) => card.open()));
  say(`All clients are connected over ${room.label(transport)}.`);
}

/** Changes run one at a time: a second click while clients are closing would open them twice. */
let changing = Promise.resolve();

function changeTo(transport) {
  changing = changing.then(async () => {
    say(`Changing to ${room.label(transport)}…`);
    await Promise.all(cards.map((card) => card.close()));
    await openAll(transport);
  });
  changing = changing.catch((error) => say(`The transport could not be changed: ${error.message}`));
}

async function crash() {
  const began = performance.now();
  say("The server process is being killed…");
  const refusal = await fetch("/demo/crash", {method: "POST"}).catch(() => null); // a killed server does not respond
  if (refusal) return say(`The server refuses to crash: HTTP ${refusal.status}`);
  await room.untilAway();
  say("The server process is gone. The clients retry until it is back.");
  await room.untilConnected();
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  say(`The server is back; all clients reconnected within ${seconds} s.`);
}

element("transport").addEventListener("change", ({target}) => changeTo(target.value));
element("cut").addEventListener("click", async () => {
  say("The connections were cut.");
  room.cut();
  await room.untilConnected();
  say("The connections were cut; all clients are connected again.");
});
element("crash").addEventListener("click", async ({target}) => {
  target.disabled = true;
  await crash();
  target.disabled = false;
});

try {
  await createQueues();
  await openAll(element("transport").querySelector(":checked").value);
} catch (error) {
  say(`The demo cannot start: ${error.message}`);
}
