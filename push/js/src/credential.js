/** When a token is to be replaced: in time before it ends, so that nobody is cut off for it. */

import {disconnected} from "./errors.js";
import {steadyMs} from "./timers.js";

/** When a token ends, in ms since 1970: as its callback says, else a JWT's own `exp`; Infinity when neither tells. */
export function tokenExpiry(given) {
  const {token, expires_at} = typeof given === "object" && given !== null ? given : {token: given};
  const toldMs = expires_at ? Date.parse(expires_at) : NaN;
  if (!Number.isNaN(toldMs)) return toldMs;
  const payload = typeof token === "string" && token.split(".").length === 3 ? token.split(".")[1] : null;
  try {
    const {exp} = payload ? JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/"))) : {};
    return typeof exp === "number" ? exp * 1000 : Infinity;
  } catch {
    return Infinity;
  }
}

/** The token in use, and how the next one is had: `options.token` is one, or a function that gives one. */
export class Credential {
  #options; #limits; #tellSlow; #token = null; #expiry = Infinity; #refreshAt = Infinity;

  /** `tellSlow` is called with the error where the function takes its time. */
  constructor(options, limits, tellSlow) {
    this.#options = options;
    this.#limits = limits;
    this.#tellSlow = tellSlow;
  }

  /** The token to use now; a `fresh` one is asked for in any case. */
  async current(fresh) {
    if (fresh || this.#token === null || Date.now() >= this.#expiry) {
      const given = await this.#ask(this.#options.token);
      this.#token = (typeof given === "object" ? given?.token : given) ?? null;
      this.#expiry = given ? tokenExpiry(given) : Infinity;
      const leftMs = this.#expiry - Date.now(); // none at all by a computer's clock that is ahead
      const {refreshAheadMs, refreshRetryMs} = this.#limits;
      const usedMs = leftMs <= 0 ? refreshRetryMs : leftMs - Math.min(refreshAheadMs, leftMs / 2);
      this.#refreshAt = steadyMs() + usedMs;
    }
    return this.#token;
  }

  /** Should the one in use be replaced by now? */
  isDue(now) {
    return now >= this.#refreshAt;
  }

  /** Tells the link of a fresh one; where that fails, it is due again a little later. */
  async renew(link) {
    this.#refreshAt = Infinity; // until the callback has answered, so that one refresh runs at a time
    try {
      await link.refresh(await this.current(true));
    } catch (error) {
      this.#refreshAt = Math.min(this.#refreshAt, steadyMs() + this.#limits.refreshRetryMs);
      throw error;
    }
  }

  /** One that is slow is told, and waited for all the same: somebody may have to sign in. */
  async #ask(token) {
    if (typeof token !== "function") return token;
    const {openMs} = this.#limits;
    const slow = () => this.#tellSlow(disconnected(`the function that gives the token has not answered for ${openMs} ms`));
    const timer = setTimeout(slow, openMs);
    timer.unref?.();
    try {
      return await token();
    } catch (error) {
      const failed = disconnected(`the function that gives the token failed: ${error?.message ?? error}`);
      throw Object.assign(failed, {isOfToken: true, cause: error}); // another transport would not help
    } finally {
      clearTimeout(timer);
    }
  }
}
