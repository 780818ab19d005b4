#!lua
-- One flush: compare the position and set it, with everything that belongs to the new one.
-- Hashes are 8 raw bytes in a row. They stay bytes: a number here has 53 bits.
local state, blocks, copies = KEYS[1], KEYS[2], KEYS[3]
local writer, from, to = ARGV[1], ARGV[2], ARGV[3]
local cleared, lease_ms, life_s = ARGV[4] == '1', tonumber(ARGV[5]), ARGV[6]
local removed, single, several, counts = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local expected = tonumber(ARGV[11])
local FIELDS = 12
-- unpack() puts its values on a stack of 8,000.
local CHUNK = 4000

-- A key of another type is as good as none: the first flush from nowhere unlinks it.
local function text(field)
  local value = redis.pcall('HGET', state, field)
  return type(value) == 'string' and value or ''
end

local position = text('position')
if position == to then return {'WRITTEN'} end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
if text('writer') ~= writer and (tonumber(text('lease_until_ms')) or 0) > now_ms then
  return {'LEASED'}
end
if position ~= from then return {'ELSEWHERE', position} end

local function each_chunk(blob, take)
  for start = 1, #blob, 8 * CHUNK do
    local chunk = {}
    for at = start, math.min(start + 8 * CHUNK, #blob + 1) - 1, 8 do
      chunk[#chunk + 1] = string.sub(blob, at, at + 7)
    end
    take(chunk, (start - 1) / 8)
  end
end

if cleared then redis.call('UNLINK', state, blocks, copies) end
-- Should a command below fail, what it leaves is at no position, and nobody goes on from there.
redis.call('HDEL', state, 'position')
local several_before = redis.call('EXISTS', copies) == 1
each_chunk(removed, function(chunk)
  redis.call('SREM', blocks, unpack(chunk))
  if several_before then redis.call('HDEL', copies, unpack(chunk)) end
end)
each_chunk(single, function(chunk)
  redis.call('SADD', blocks, unpack(chunk))
  if several_before then redis.call('HDEL', copies, unpack(chunk)) end
end)
each_chunk(several, function(chunk, before)
  redis.call('SADD', blocks, unpack(chunk))
  for index, hash in ipairs(chunk) do
    local at = 4 * (before + index - 1) + 1
    redis.call('HSET', copies, hash, string.sub(counts, at, at + 3))
  end
end)

local held = redis.call('SCARD', blocks)
if held ~= expected then
  redis.call('UNLINK', state, blocks, copies)
  return {'ELSEWHERE', ''}
end
redis.call('HSET', state, 'position', to, 'writer', writer,
  'lease_until_ms', string.format('%.0f', now_ms + lease_ms),
  'blocks', held, 'copies', redis.call('HLEN', copies), unpack(ARGV, FIELDS))
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, life_s) end
return {'WRITTEN'}
