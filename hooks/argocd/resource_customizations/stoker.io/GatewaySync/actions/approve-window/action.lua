-- Lets the target commit through a closed maintenance window, as stoker approve --window does. Only users with the verb approve may.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes, target, waits = obj.metadata.annotations, map(map(obj.status).target), false
for _, row in ipairs(map(map(obj.status).discoveredGateways)) do
  waits = waits or map(row).reason == "MaintenanceWindow"
end

if not waits or type(target.commit) ~= "string" or #target.commit ~= 40 then
  error("no gateway waits for a maintenance window", 0)
end

-- The last 17 entries count, at most 2048 bytes. Scripts have no string library.
local entry, have = "window@" .. target.commit, notes["stoker.io/approved"]
if type(have) ~= "string" or have == "" or #have + 1 + #entry > 2048 then
  notes["stoker.io/approved"] = entry
else
  notes["stoker.io/approved"] = have .. "," .. entry
end
return obj
