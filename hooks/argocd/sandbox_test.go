// Package argocd holds the Argo CD integration: the health checks and the actions of GatewaySyncs and ConfigSyncs, and the notifications of
// Argo CD. The scripts have the layout of Argo CD's own resource_customizations. Go runs them only in tests. The tests in files with the build
// tag !race enumerate cases without concurrency: the race detector would only slow them down.
package argocd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

// folder is the directory of the scripts.
const folder = "resource_customizations/stoker.io/GatewaySync"

// limit is ten times the limit of Argo CD, because other tests use the machine at the same time.
const limit = 10 * time.Second

// script is a compiled file of the folder.
type script struct {
	path  string
	proto *lua.FunctionProto
}

func load(t testing.TB, path string) *script {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, path))
	require.NoError(t, err)
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	f, err := state.LoadString(string(text))
	require.NoError(t, err, path)
	return &script{path, f.Proto}
}

// run runs a script on an object as Argo CD does and returns its result as JSON. The libraries string and math are missing. os
// offers only date and time, and only through require.
func (s *script) run(obj map[string]any, now time.Time) ([]byte, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true, RegistrySize: 512, RegistryMaxSize: 256 * 20, RegistryGrowStep: 512})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	state.PreloadModule(lua.OsLibName, func(l *lua.LState) int {
		l.Push(l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
			"time": func(l *lua.LState) int {
				at := now
				if l.GetTop() > 0 {
					t := l.CheckTable(1)
					field := func(name string) int { return int(lua.LVAsNumber(t.RawGetString(name))) }
					at = time.Date(field("year"), time.Month(field("month")), field("day"), field("hour"), field("min"), field("sec"), 0, zone)
				}
				l.Push(lua.LNumber(at.Unix()))
				return 1
			},
			// As in Argo CD, a second argument makes it a local time, whatever the format says.
			"date": func(l *lua.LState) int {
				format, at := l.CheckString(1), now.UTC()
				if l.GetTop() > 1 {
					at = time.Unix(l.CheckInt64(2), 0).In(zone)
				}
				switch format {
				case "!*t":
					l.Push(fieldsOf(l, at))
				case "!%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ":
					text := at.Format("2006-01-02T15:04:05")
					if format[0] == '%' {
						text += "Z"
					}
					l.Push(lua.LString(text))
				default:
					l.RaiseError("unsupported format %s", format)
				}
				return 1
			},
		}))
		return 1
	})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", value(state, obj))
	state.Push(state.NewFunctionFromProto(s.proto))
	if err := state.PCall(0, lua.MultRet, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return luajson.Encode(state.Get(-1))
}

// zone is the time zone of Argo CD's container.
var zone = time.FixedZone("plant", 5*60*60+30*60)

func fieldsOf(l *lua.LState, at time.Time) *lua.LTable {
	t := l.NewTable()
	for name, n := range map[string]int{"year": at.Year(), "month": int(at.Month()), "day": at.Day(), "hour": at.Hour(), "min": at.Minute(), "sec": at.Second()} {
		t.RawSetString(name, lua.LNumber(n))
	}
	return t
}

// value converts JSON to what a script sees.
func value(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case int64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		list := l.CreateTable(len(v), 0)
		for _, item := range v {
			list.Append(value(l, item))
		}
		return list
	case map[string]any:
		table := l.CreateTable(0, len(v))
		for key, item := range v {
			table.RawSetString(key, value(l, item))
		}
		return table
	}
	return lua.LNil
}

// noon is the time of Argo CD while a script runs. The scripts take the fraction of the second from the resourceVersion.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// health is the result of the health script.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func (s *script) health(t testing.TB, obj map[string]any) health {
	t.Helper()
	raw, err := s.run(obj, noon)
	require.NoError(t, err)
	var h health
	require.NoError(t, json.Unmarshal(raw, &h), "%s", raw)
	return h
}

// object returns v as Argo CD reads it from the API server.
func object(t testing.TB, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	obj := map[string]any{}
	require.NoError(t, json.Unmarshal(raw, &obj))
	return obj
}
