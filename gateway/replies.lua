-- Replies to publishes under an idempotency key, many at once: one command and one answer cost a gateway as much as many.
--
-- KEYS: of calls that are asked for, then of calls that were answered.
-- ARGV: how many are asked for; for each that was answered its reply and for how many milliseconds it is kept.
-- Answers for each that is asked for: its reply, or false.
local asked = tonumber(ARGV[1])
local out = {}
for i = 1, asked do
  out[i] = redis.call('GET', KEYS[i])
end
for i = asked + 1, #KEYS do
  local at = 2 * (i - asked)
  redis.call('SET', KEYS[i], ARGV[at], 'PX', ARGV[at + 1])
end
return out
