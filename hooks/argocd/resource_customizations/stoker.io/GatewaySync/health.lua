-- How far the gateways of a GatewaySync are with what they are to run, as internal/verb/judge.go judges it: the status must
-- speak of today's generation, ref and request, and every gateway must run the commit. Ready alone is never enough.
-- Argo CD waits while it is Progressing or Suspended, and fails a sync at once when it is Degraded: that is only said of what
-- a person has to change. docs/argocd.md has the table.

-- desired ref: begin
-- As api/v1alpha1/desiredref.go finds it. Argo CD runs each script by itself, without the libraries string and math, so
-- that three files hold these lines; a test compares them.
local octets = {
  "\0", "\1", "\2", "\3", "\4", "\5", "\6", "\7", "\8", "\9", "\10", "\11", "\12", "\13", "\14", "\15",
  "\16", "\17", "\18", "\19", "\20", "\21", "\22", "\23", "\24", "\25", "\26", "\27", "\28", "\29", "\30", "\31",
  "\32", "\33", "\34", "\35", "\36", "\37", "\38", "\39", "\40", "\41", "\42", "\43", "\44", "\45", "\46", "\47",
  "\48", "\49", "\50", "\51", "\52", "\53", "\54", "\55", "\56", "\57", "\58", "\59", "\60", "\61", "\62", "\63",
  "\64", "\65", "\66", "\67", "\68", "\69", "\70", "\71", "\72", "\73", "\74", "\75", "\76", "\77", "\78", "\79",
  "\80", "\81", "\82", "\83", "\84", "\85", "\86", "\87", "\88", "\89", "\90", "\91", "\92", "\93", "\94", "\95",
  "\96", "\97", "\98", "\99", "\100", "\101", "\102", "\103", "\104", "\105", "\106", "\107", "\108", "\109", "\110", "\111",
  "\112", "\113", "\114", "\115", "\116", "\117", "\118", "\119", "\120", "\121", "\122", "\123", "\124", "\125", "\126", "\127",
  "\128", "\129", "\130", "\131", "\132", "\133", "\134", "\135", "\136", "\137", "\138", "\139", "\140", "\141", "\142", "\143",
  "\144", "\145", "\146", "\147", "\148", "\149", "\150", "\151", "\152", "\153", "\154", "\155", "\156", "\157", "\158", "\159",
  "\160", "\161", "\162", "\163", "\164", "\165", "\166", "\167", "\168", "\169", "\170", "\171", "\172", "\173", "\174", "\175",
  "\176", "\177", "\178", "\179", "\180", "\181", "\182", "\183", "\184", "\185", "\186", "\187", "\188", "\189", "\190", "\191",
  "\192", "\193", "\194", "\195", "\196", "\197", "\198", "\199", "\200", "\201", "\202", "\203", "\204", "\205", "\206", "\207",
  "\208", "\209", "\210", "\211", "\212", "\213", "\214", "\215", "\216", "\217", "\218", "\219", "\220", "\221", "\222", "\223",
  "\224", "\225", "\226", "\227", "\228", "\229", "\230", "\231", "\232", "\233", "\234", "\235", "\236", "\237", "\238", "\239",
  "\240", "\241", "\242", "\243", "\244", "\245", "\246", "\247", "\248", "\249", "\250", "\251", "\252", "\253", "\254", "\255",
}

local function text(value)
  if type(value) == "string" then return value end
  return ""
end

local function number(value)
  if type(value) == "number" then return value end
  return 0
end

local function map(value)
  if type(value) == "table" then return value end
  return {}
end

-- No text of a Kubernetes object holds the octet 255: all that begins with start sorts from start up to start and 255.
local function begins(s, start)
  return start <= s and s < start .. "\255"
end

-- The first octets of s. Comparing is all that can be done to a string here: one octet is the highest that, behind what is
-- known, does not sort behind s.
local function split(s, most)
  local list, known = {}, ""
  while #list < most and #known < #s do
    local low, high = 1, 256
    while low < high do
      local middle = low + high + 1
      middle = (middle - middle % 2) / 2
      if known .. octets[middle] <= s then low = middle else high = middle - 1 end
    end
    list[#list + 1] = octets[low]
    known = known .. octets[low]
  end
  return list
end

local function first(s, most)
  return table.concat(split(s, most))
end

-- What others wrote and is only compared: nothing where it is too long or holds what would break a line.
local function token(s)
  if #s > 64 then return "" end
  for _, c in ipairs(split(s, 64)) do
    if c <= " " or c == "\127" then return "" end
  end
  return s
end

local capitals = {A = "a", B = "b", C = "c", D = "d", E = "e", F = "f", G = "g", H = "h", I = "i", J = "j", K = "k", L = "l", M = "m",
  N = "n", O = "o", P = "p", Q = "q", R = "r", S = "s", T = "t", U = "u", V = "v", W = "w", X = "x", Y = "y", Z = "z"}

local function lower(s)
  local list = split(s, 64)
  for i, c in ipairs(list) do list[i] = capitals[c] or c end
  return table.concat(list)
end

local refused = {["~"] = true, ["^"] = true, [":"] = true, ["?"] = true, ["*"] = true, ["["] = true, ["\\"] = true, ["\127"] = true}

-- Whether a text can be a ref at all, by the rules of git.
local function isref(s)
  if #s > 1020 or s == "" or s == "@" then return false end
  local letters, before, known = 0, "", ""
  for _, c in ipairs(split(s, 1020)) do
    if c <= " " or refused[c] then return false end
    if before == "" and (c == "-" or c == "/" or c == ".") then return false end
    if before == "." and c == "." or before == "/" and (c == "/" or c == ".") or before == "@" and c == "{" then return false end
    if c < "\128" or c > "\191" then letters = letters + 1 end
    if c == "." and (s == known .. ".lock" or begins(s, known .. ".lock/")) then return false end
    before, known = c, known .. c
  end
  return letters <= 255 and before ~= "/" and before ~= "."
end

local function iscommit(s)
  if #s ~= 40 then return false end
  for _, c in ipairs(split(s, 40)) do
    if not (c >= "0" and c <= "9" or c >= "a" and c <= "f") then return false end
  end
  return true
end

-- Whether over speaks of the request that begins it: two refs of up to 255 letters, a time, and what parts them. A letter has up
-- to four octets.
local function fits(over, start)
  if #over > 4 * 576 or not begins(over, start) then return false end
  if #over <= 576 then return true end
  local letters = 0
  for _, c in ipairs(split(over, #over)) do
    if c < "\128" or c > "\191" then letters = letters + 1 end
  end
  return letters <= 576
end

-- Which ref the gateways are to run. bad: why the request can be none. commit: where the ref has to stand. off: the commit of the spec that a rollback holds off.
local function desired(gs)
  local notes, request = map(map(gs.metadata).annotations), map(map(gs.status).request)
  local spec, asked = text(map(map(gs.spec).git).ref), text(notes["stoker.io/requested-ref"])
  local d = {ref = spec, at = token(text(notes["stoker.io/requested-at"]))}
  if asked == "" then return d end
  if not isref(asked) then
    d.bad = "annotation stoker.io/requested-ref: \"" .. first(asked, 80) .. "\" is not a ref: set another one, or remove the annotation"
    return d
  end
  local start = asked .. "@"
  local over, unless = text(notes["stoker.io/requested-over"]), text(notes["stoker.io/requested-unless"])
  local commit = text(notes["stoker.io/requested-commit"])
  if not fits(over, start) then
    if over ~= "" then unless, commit = "", "" end -- they are those of an earlier request
    over = text(request.over)
  end
  if commit ~= "" and not iscommit(lower(first(commit, 41))) then
    d.bad = "annotation stoker.io/requested-commit: \"" .. first(commit, 80)
      .. "\" is not a commit: write all its 40 hexadecimal digits, or remove the annotation"
    return d
  end
  if not fits(over, start) then over = start .. spec end
  local name = over
  if unless ~= "" then name = over .. " unless " .. lower(token(unless)) end
  local same = over == start .. spec or begins(over, start .. spec .. " ")
  if same and text(request.lapsed) ~= name then d.commit = lower(commit) end
  if same and asked ~= spec and text(request.lapsed) ~= name then
    d.ref, d.override, unless = asked, true, lower(token(unless))
    if iscommit(unless) then d.off = unless end
  end
  return d
end
-- desired ref: end

local function set(list)
  local out = {}
  for _, word in ipairs(list) do out[word] = true end
  return out
end

local stalled = set {"RefNotFound", "AmbiguousRef", "RefNotAllowed", "RefMoved", "AuthFailed", "HostKeyUnknown", "HostKeyMismatch", "RedirectRefused",
  "ProfileNotFound", "ProfilesInvalid", "TemplateFailed", "PatchFailed", "ConfigSyntaxError", "SourceMissing", "UnsafePath", "PathCollision",
  "LimitExceeded", "LFSPointer", "UnsupportedRepository", "PodRestartNeeded", "ProgressDeadlineExceeded", "RolledBack"}
-- What only a person ends, and what ends by itself.
local person = set {"DesignerSessionActive", "ConflictDetected", "MassDeletion", "ApprovalNeeded", "DuplicateGateway"}
local turn = set {"GateClosed", "NoConfigAccess"}

local gs = map(obj)
local meta, status, wanted = map(gs.metadata), map(gs.status), desired(gs)
local target = map(status.target)
local current = number(status.observedGeneration) == number(meta.generation)
local looked = current and status.target ~= nil and text(target.ref) == wanted.ref
  and (wanted.at == "" or text(target.requestedAt) == wanted.at)
  and ((wanted.commit or "") == "" or text(target.commit) == "" or target.commit == wanted.commit)
local handled = wanted.at == "" or text(status.lastHandledRequest) == wanted.at
-- Another ref is wanted than the one that the status speaks of.
local moved = status.target ~= nil and text(target.ref) ~= wanted.ref
local commit = ""
if looked then commit = text(target.commit) end

-- A condition, where it speaks of this generation.
local function condition(kind)
  for _, c in ipairs(map(status.conditions)) do
    c = map(c)
    if c.type == kind then
      if not current or number(c.observedGeneration) ~= number(meta.generation) then return {} end
      return {status = text(c.status), reason = text(c.reason), message = text(c.message)}
    end
  end
  return {}
end

local ready, resolved, profiles = condition("Ready"), condition("RefResolved"), condition("ProfilesValid")
local deadline = condition("Stalled")

local function say(health, reason, message)
  if reason ~= "" then message = reason .. ": " .. message end
  return {status = health, message = message}
end

-- An Error where others are Held is of who does not want to wait for a person: designerSessionPolicy fail.
local function fails(state, reason)
  return stalled[reason] or state == "Error" and (person[reason] or turn[reason])
end

-- A gateway with its pod, if that is called otherwise.
local function label(row)
  local name, pod = text(row.name), text(row.podName)
  if pod == "" or pod == name then return name end
  return name .. " (pod " .. pod .. ")"
end

-- count looks at every gateway.
local function count()
  local seen = {total = 0, synced = 0, behind = 0, persons = 0, turns = 0, paused = 0}
  for _, row in ipairs(map(status.discoveredGateways)) do
    row = map(row)
    local state, reason, message = text(row.syncStatus), text(row.reason), text(row.message)
    local there = state == "Synced" or state == "Standby"
    seen.total = seen.total + 1
    if there and commit ~= "" and text(row.syncedCommit) == commit then
      seen.synced = seen.synced + 1
    else
      if there then
        state, reason, message = "Pending", "Progressing", "has not dealt with the request yet"
      elseif looked and fails(state, reason) and (handled or reason == "PodRestartNeeded") and not seen.broken then
        seen.broken = {reason = reason, message = label(row) .. ": " .. message}
      end
      seen.behind = seen.behind + 1
      if person[reason] and not fails(state, reason) then
        seen.persons, seen.person = seen.persons + 1, seen.person or reason
      end
      if turn[reason] and not fails(state, reason) then seen.turns = seen.turns + 1 end
      if reason == "Paused" or reason == "DryRun" then seen.paused = seen.paused + 1 end
      if seen.behind == 1 then
        seen.reason, seen.first = reason, label(row) .. " " .. state
        if reason ~= "" and reason ~= state then seen.first = seen.first .. "/" .. reason end
        if message ~= "" then seen.first = seen.first .. ": " .. message end
      end
    end
  end
  -- Of a very large fleet the status has not all rows. Those that are synced are left out first: as many as the status counts.
  local part, at = {"", ""}, 1
  for _, c in ipairs(split(text(status.gatewaysReady), 32)) do
    if c == "/" then at = 2 else part[at] = part[at] .. c end
  end
  local synced, total = tonumber(part[1]), tonumber(part[2])
  seen.all = seen.total
  if synced and total and total > seen.total and seen.total > 0 then
    local left = total - seen.total
    seen.all = total
    if looked and synced >= left then
      seen.synced = seen.synced + left
    elseif looked and synced > 0 then
      seen.synced = seen.synced + synced
    end
  end
  return seen
end

local seen = count()

-- A UTC time such as 2026-01-02T12:00:00Z in seconds. Argo CD's os.date gives UTC only for now, and os.time reads local time.
local function seconds(s)
  local c = split(s, 19)
  local function part(from, to) return tonumber(table.concat(c, "", from, to)) or 0 end
  local function whole(a, b) return (a - a % b) / b end
  local year, month = part(1, 4), part(6, 7)
  if month < 3 then year, month = year - 1, month + 12 end
  local days = 365 * year + whole(year, 4) - whole(year, 100) + whole(year, 400) + whole(153 * month - 457, 5) + part(9, 10)
  return ((days * 24 + part(12, 13)) * 60 + part(15, 16)) * 60 + part(18, 19)
end

-- The lead confirms every two minutes that the status holds. If it has not for five, no agent runs that would take it back. A
-- time of the future confirms nothing, unless clocks that differ explain it.
local confirmed, left = text(status.confirmedAt), true
if #confirmed >= 19 then
  local old = seconds(require("os").date("!%Y-%m-%dT%H:%M:%S")) - seconds(confirmed)
  left = old > 300 or old < -300
  if old < 0 then confirmed = "" end
end

-- progress is the fleet in a line.
local function progress()
  local what = wanted.ref
  if commit ~= "" and not begins(commit, wanted.ref) then
    what = what .. " at " .. first(commit, 7)
  elseif commit ~= "" then
    what = first(commit, 7)
  end
  local line = seen.synced .. " of " .. seen.all .. " gateways run " .. what
  if seen.first then line = line .. "; " .. seen.first end
  if seen.behind > 1 then line = line .. "; " .. (seen.behind - 1) .. " more" end
  if seen.behind == 0 and not handled then line = line .. "; not all of them have dealt with the request yet" end
  return line
end

-- judge returns the first of these that holds.
local function judge()
  local paused = map(gs.spec).paused == true or map(meta.annotations)["stoker.io/paused"] == "true"
  local lost = ready.status == "Unknown" and ready.reason == "ProgressDeadlineExceeded"
  if current and handled and seen.total == 0 and ready.reason == "NoGateways" then
    return say("Healthy", "", ready.message) -- in an early wave its gateways come in a later one
  end
  if wanted.bad then
    return say("Degraded", "RefNotFound", wanted.bad)
  end
  if profiles.status == "False" then
    return say("Degraded", profiles.reason, profiles.message)
  end
  if looked and resolved.status == "False" and stalled[resolved.reason] then
    return say("Degraded", resolved.reason, resolved.message)
  end
  if ready.reason == "AgentsAway" then -- what the rows say was before
    return say("Progressing", ready.reason, ready.message)
  end
  if seen.total > 0 and seen.synced == seen.all and handled and not lost and not left then
    if wanted.off then -- all is well, and it is not what the spec says
      return say("Healthy", "RolledBack", text(map(map(gs.spec).git).ref) .. " is held off at " .. first(wanted.off, 7) .. ": " .. progress())
    end
    return say("Healthy", paused and "Paused" or "", progress())
  end
  if seen.broken then
    return say("Degraded", seen.broken.reason, seen.broken.message)
  end
  if deadline.reason == "ProgressDeadlineExceeded" and (looked or handled and (lost or not moved)) then
    return say("Degraded", deadline.reason, deadline.message)
  end
  if seen.total > 0 and left then
    return say("Progressing", "AgentsAway", "no agent leads" .. (confirmed == "" and "" or " since " .. confirmed)
      .. ", so what the gateways run is not known: look for pods without an agent and for a missing injector (stoker check)")
  end
  if paused then
    if looked then return say("Healthy", "Paused", progress()) end
    return say("Progressing", "Paused", "the status does not speak of today's spec and request yet")
  end
  if seen.total == 0 and not current then
    return say("Progressing", "WaitingForLead", "the status does not speak of today's spec yet")
  end
  if seen.total == 0 then
    return say("Progressing", "NoGateways", "no gateway was discovered")
  end
  if resolved.status == "False" then
    return say("Progressing", resolved.reason, resolved.message)
  end
  if not looked then
    return say("Progressing", "WaitingForLead", "the lead has not asked git for " .. wanted.ref .. " yet")
  end
  if commit ~= "" and handled and seen.behind > 0 and seen.paused == seen.behind then
    return say("Healthy", seen.reason, progress()) -- a person wants it so
  end
  if seen.persons > 0 and seen.persons + seen.turns + seen.paused == seen.behind then
    return say("Suspended", seen.person, progress())
  end
  if not seen.reason or seen.reason == "Progressing" then seen.reason = "" end
  return say("Progressing", seen.reason, progress())
end

return judge()
