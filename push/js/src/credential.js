/** When a token is to be replaced: in time before it ends, so that nobody is cut off for it. */

/** When a token ends, in ms since 1970: as its callback says, else a JWT's own `exp`; Infinity when neither tells. */
export function tokenExpiry(token) {
  if (typeof token === "object" && token?.expires_at) return Date.parse(token.expires_at);
  const payload = typeof token === "string" && token.split(".").length === 3 ? token.split(".")[1] : null;
  try {
    const {exp} = payload ? JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/"))) : {};
    return typeof exp === "number" ? exp * 1000 : Infinity;
  } catch {
    return Infinity;
  }
}
