#!lua flags=no-writes
-- All that is kept of a replica, at one moment: its fields, its blocks, and copies beyond the first.
return {
  redis.call('HGETALL', KEYS[1]),
  table.concat(redis.call('SMEMBERS', KEYS[2])),
  redis.call('HGETALL', KEYS[3]),
}
