-- What can be done with a GatewaySync, and what of it would change nothing now.

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

-- rollback: begin
-- As internal/verb/rollback.go finds it; discovery.lua and rollback/action.lua hold the same lines.
-- What to ask for; or nil, why not, and whether that is because all is as it would be. Where spec.git.ref led to what is
-- rolled back, the request counts only until that ref moves on.
local function rollback(gs)
  local status, good = map(gs.status), text(map(map(gs.status).lastGood).commit)
  if not iscommit(good) then return nil, "no commit has run on all its gateways yet: there is nothing to go back to" end
  local d, spec, target = desired(gs), text(map(map(gs.spec).git).ref), map(status.target)
  if d.bad then return {ref = good} end
  if d.ref == good then return nil, "it is to run " .. first(good, 7) .. " already", true end
  local looked = number(status.observedGeneration) == number(map(gs.metadata).generation) and text(target.ref) == d.ref
  local there = d.ref .. " is at " .. first(good, 7) .. ", the commit to go back to: there is nothing to roll back"
  if d.override then
    if looked and (d.at == "" or text(target.requestedAt) == d.at) and target.commit == good
      and (d.commit == nil or d.commit == "" or d.commit == good) then return nil, there, true end
    return {ref = good, unless = d.off}
  end
  if iscommit(spec) then return {ref = good, unless = spec} end
  if not looked or text(target.commit) == "" then
    return nil, "the lead has not yet said where spec.git.ref stands: try again soon"
  end
  if target.commit == good then return nil, there, true end
  return {ref = good, unless = target.commit}
end
-- rollback: end

local gs = map(obj)
local paused = map(map(gs.metadata).annotations)["stoker.io/paused"] == "true"

return {
  ["force-sync"] = {displayName = "Force sync", iconClass = "fa fa-fw fa-sync", disabled = false},
  ["pause"] = {displayName = "Pause", iconClass = "fa fa-fw fa-pause-circle", disabled = paused or map(gs.spec).paused == true},
  ["resume"] = {displayName = "Resume", iconClass = "fa fa-fw fa-play-circle", disabled = not paused},
  ["rollback"] = {displayName = "Roll back to the last good commit", iconClass = "fa fa-fw fa-history", disabled = rollback(gs) == nil},
}
