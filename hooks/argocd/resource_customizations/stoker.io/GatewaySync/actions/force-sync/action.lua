-- Asks the gateways to verify every managed file by its content, repair it, and scan again, as stoker sync --force does.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes = obj.metadata.annotations

-- The fraction of the second comes from the resource version, which each write changes, so that two clicks are two requests.
local digits = tostring((tonumber(obj.metadata.resourceVersion) or 0) % 1000000000)
while #digits < 9 do digits = "0" .. digits end
local at = require("os").date("!%Y-%m-%dT%H:%M:%S") .. "." .. digits .. "Z"
notes["stoker.io/force-sync"], notes["stoker.io/requested-at"] = at, at
if notes["stoker.io/requested-ref"] == nil then
  notes["stoker.io/requested-by"] = "argocd" -- otherwise it belongs to the requested ref
end
return obj
