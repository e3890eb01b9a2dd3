-- What the fleet knows of one host, for people; changes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 100) / 10
local told = redis.call(
  'HMGET', KEYS[1], 'host', 'limit', 'pause_until', 'refusals', 'incidents', 'reason', 'start', 'ceiling'
)
local waiting = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if tonumber(redis.call('ZSCORE', KEYS[4], id) or 0) > now then
    waiting[string.match(id, '^(.*):')] = true
  end
end
local workers = 0
for _ in pairs(waiting) do
  workers = workers + 1
end
return cjson.encode({
  host = told[1],
  limit = tonumber(told[2]),
  pause = math.max(0, (tonumber(told[3]) or 0) - now),
  refusals = tonumber(told[4]),
  incidents = tonumber(told[5]),
  reason = told[6],
  start = tonumber(told[7]),
  ceiling = tonumber(told[8]),
  in_flight = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf'),
  waiting = workers,
  workers = redis.call('ZCOUNT', KEYS[5], '(' .. now, '+inf'),
})
