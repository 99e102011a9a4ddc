-- Asks the gateways to verify every managed file by its content, repair it, and scan again, as stoker sync --force does.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

-- stamp: begin
-- A time that no earlier request has. The clock of Lua has seconds only; what follows them is from the version of the object,
-- which every write of it changes: two clicks in one second are two requests, and one click that is sent twice is one.
-- force-sync/action.lua and rollback/action.lua hold the same lines.
local os = require("os")

local function stamp(gs, last)
  local part = tonumber(map(gs.metadata).resourceVersion) or 0
  part = part - part % 1
  part = part % 1000000000
  if not (part >= 0) then part = 0 end
  local at
  repeat
    local digits = tostring(part)
    while #digits < 9 do digits = "0" .. digits end
    at = os.date("!%Y-%m-%dT%H:%M:%S") .. "." .. digits .. "Z"
    part = (part + 1) % 1000000000
  until at ~= last
  return at
end
-- stamp: end

local gs = map(obj)
gs.metadata = map(gs.metadata)
gs.metadata.annotations = map(gs.metadata.annotations)
local notes = gs.metadata.annotations

local at = stamp(gs, notes["stoker.io/requested-at"])
notes["stoker.io/force-sync"] = at
notes["stoker.io/requested-at"] = at
if notes["stoker.io/requested-ref"] == nil then
  notes["stoker.io/requested-by"] = "argocd" -- else it tells who asked for the ref
end

return obj
