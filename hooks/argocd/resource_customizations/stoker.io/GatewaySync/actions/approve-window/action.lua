-- Lets the commit of status.approval through the maintenance windows, as stoker approve --window does. Only users with the verb
-- approve may.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes, approval = obj.metadata.annotations, map(map(obj.status).approval)
if approval.window ~= true or type(approval.commit) ~= "string" or #approval.commit ~= 40 then error("no gateway waits for a maintenance window", 0) end

-- The last 17 entries count, at most 4096 bytes. Scripts have no string library.
local entry, have = "window@" .. approval.commit, notes["stoker.io/approved"]
if type(have) ~= "string" or have == "" or #have + 1 + #entry > 4096 then
  notes["stoker.io/approved"] = entry
else
  notes["stoker.io/approved"] = have .. "," .. entry
end
return obj
