-- GCRA for several rules of one hit, decided as one: each is counted, or none is. See gcra.py for the algorithm.
--
-- KEYS: one for each rule and subject; its value is the theoretical arrival time in microseconds of this server's clock.
-- ARGV: for each key quota, window in microseconds, least, most. A key gives `least` or the hit is refused; up to `most`
-- where there is room. A negative `most` gives back. What a take moves is rounded down to a microsecond; products above
-- 2^53 are off by less than that.
-- Answers: allowed, then for each key what was taken, what is left, and how many microseconds until `least` fits
-- (0: it does; -1: never).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local allowed = 1
local starts, takes, out = {}, {}, {0}

for i = 1, #KEYS do
  local quota, window = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local least, most = tonumber(ARGV[4 * i - 1]), tonumber(ARGV[4 * i])
  local tat = tonumber(redis.call('GET', KEYS[i]) or '0')
  -- Further ahead than a window is only what a clock that went back left behind.
  local start = math.max(now, math.min(tat, now + window))
  local room = math.floor((now + window - start) * quota / window)
  local wait = 0
  if most >= 0 then
    most = math.min(most, room)
    if most < least then
      allowed = 0
      wait = least > quota and -1 or start + math.floor(least * window / quota) - now - window
    end
  end
  starts[i], takes[i] = start, most
  out[3 * i - 1], out[3 * i], out[3 * i + 1] = 0, math.max(0, room), math.max(-1, wait)
end
if allowed == 0 then
  return out
end

out[1] = 1
for i = 1, #KEYS do
  local quota, window = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  if takes[i] ~= 0 then
    local tat = starts[i] + math.floor(takes[i] * window / quota)
    if tat > now then
      redis.call('SET', KEYS[i], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000) + 1)
    else
      redis.call('DEL', KEYS[i])
    end
    out[3 * i - 1], out[3 * i] = takes[i], math.max(0, out[3 * i] - takes[i])
  end
end
return out
