/** Time and turns: what waits and leases go by, and what happens once however often it is asked for. */

let setBackMs = 0;
let latestMs = 0;

/** The time that waits and leases go by: a computer's clock that is set back must not make them last until it has caught up. */
export const steadyMs = () => {
  const ms = Date.now() + setBackMs;
  setBackMs += Math.max(0, latestMs - ms);
  return (latestMs = Math.max(latestMs, ms));
};

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for `promise`, at most `ms`. */
export async function within(ms, promise) {
  let timer;
  await Promise.race([promise, new Promise((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}

/** Runs `action` once after this turn of the event loop, however often asked. Hidden tabs throttle timers, not this. */
export function oncePerTurn(action) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    nextTurn(() => {
      isAsked = false;
      action();
    });
  };
}

const nextTurn = globalThis.setImmediate ?? (() => {
  const {port1, port2} = new MessageChannel();
  const actions = [];
  port1.onmessage = () => actions.shift()();
  return (action) => {
    actions.push(action);
    port2.postMessage(null);
  };
})();
