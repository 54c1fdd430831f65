-- Replies to publishes under an idempotency key, many at once: one command and one answer cost a gateway as much as many.
--
-- KEYS: of calls that begin, then of calls that were answered, then of those that came to nothing.
-- ARGV: how many begin, how many were answered; for each that begins its mark and how many milliseconds it lasts; for
-- each that was answered its reply and the same.
-- Answers for each that begins: what was there before it, or false, and then its mark is there now.
local begun, finished = tonumber(ARGV[1]), tonumber(ARGV[2])
local out = {}
for i = 1, begun do
  out[i] = redis.call('SET', KEYS[i], ARGV[2 * i + 1], 'NX', 'GET', 'PX', ARGV[2 * i + 2])
end
for i = begun + 1, begun + finished do
  redis.call('SET', KEYS[i], ARGV[2 * i + 1], 'PX', ARGV[2 * i + 2])
end
for i = begun + finished + 1, #KEYS do
  redis.call('DEL', KEYS[i])
end
return out
