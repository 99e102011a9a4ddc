-- Asks the gateways that rolled the target commit back to try it again, as stoker retry does.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

local commit = map(obj.status).retry
if type(commit) ~= "string" or commit == "" then
  error("there is nothing to retry: no gateway rolled the desired commit back", 0)
end
obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
obj.metadata.annotations["stoker.io/retry"] = commit .. " " .. require("os").date("!%Y-%m-%dT%H:%M:%S") .. "Z"
return obj
