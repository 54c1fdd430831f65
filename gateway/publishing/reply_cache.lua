-- Replies to publishes under an idempotency key, many at once: one command and one answer cost a gateway as much as many.
--
-- KEYS: of calls that are asked for.
-- ARGV: how many those are; what was answered, in one piece, since a client takes its time over each argument. A reply
-- there has the size of its key and its own, for how many milliseconds it is kept, the key, the reply.
-- Answers for each that is asked for: its reply, or false.
local out = {}
for i = 1, tonumber(ARGV[1]) do
  out[i] = redis.call('GET', KEYS[i])
end
local finished, at = ARGV[2], 1
while at <= #finished do
  local key_size, size, ms, from = struct.unpack('>I4I4d', finished, at)
  at = from + key_size + size
  redis.call('SET', finished:sub(from, from + key_size - 1), finished:sub(from + key_size, at - 1), 'PX', ms)
end
return out
