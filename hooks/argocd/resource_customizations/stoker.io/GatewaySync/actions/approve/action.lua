-- Approves the stage of status.approval for its commit, as stoker approve does. Only users with the verb approve may.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes, approval = obj.metadata.annotations, map(map(obj.status).approval)

-- Agents write the status. It must not choose what is approved beyond a stage of the spec and one commit.
local known = false
for _, stage in ipairs(map(map(map(obj.spec).deployment).stages)) do
  known = known or map(stage).name == approval.stage
end
if not known or type(approval.commit) ~= "string" or #approval.commit ~= 40 then error("nothing waits for an approval of a stage of the spec", 0) end

-- The API server accepts only entries of the form stage@commit. The last 17 of them count, at most 4096 bytes. Scripts have no string library.
local entry, have = approval.stage .. "@" .. approval.commit, notes["stoker.io/approved"]
if type(have) ~= "string" or have == "" or #have + 1 + #entry > 4096 then
  notes["stoker.io/approved"] = entry
else
  notes["stoker.io/approved"] = have .. "," .. entry
end
return obj
