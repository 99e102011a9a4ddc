-- Requests the commit in status.rollback, as stoker rollback does, if the status describes the current spec and request.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

local meta, status = map(obj.metadata), map(obj.status)
obj.metadata = meta
meta.annotations = map(meta.annotations)
local notes, back = meta.annotations, map(status.rollback)

local request = ""
for _, name in ipairs({"requested-ref", "requested-over", "requested-unless", "requested-commit", "requested-at", "paused", "retry"}) do
  local value = notes["stoker.io/" .. name]
  if value ~= nil and value ~= "" then request = request .. name .. "=" .. value .. "\n" end
end
if #request > 4096 then request = "too long" end
if map(status.lastGood).commit == nil then error("no good commit is known yet: there is nothing to go back to", 0) end
local known = status.outcome ~= nil and status.rollback ~= nil
if status.observedGeneration ~= meta.generation or (status.observedRequest or "") ~= request or not known then
  error("the desired ref is not resolved yet: try again soon", 0)
end
if back.commit == nil or back.commit == "" then return obj end -- already the desired commit

-- The fraction of the second comes from the resource version, which each write changes, so that two clicks are two requests.
local digits = tostring((tonumber(meta.resourceVersion) or 0) % 1000000000)
while #digits < 9 do digits = "0" .. digits end
local at = require("os").date("!%Y-%m-%dT%H:%M:%S") .. "." .. digits .. "Z"
notes["stoker.io/requested-ref"] = back.commit
notes["stoker.io/requested-over"] = back.over .. " " .. at
notes["stoker.io/requested-unless"] = back.unless
notes["stoker.io/requested-commit"], notes["stoker.io/requested-for"] = nil, nil
notes["stoker.io/requested-at"], notes["stoker.io/requested-by"] = at, "argocd"
return obj
