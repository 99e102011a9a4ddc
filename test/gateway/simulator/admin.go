package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// adminRoutes are the simulator's own interface, which a real gateway does not have.
func (g *Gateway) adminRoutes() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"GET /state":    g.adminState,
		"POST /state":   g.adminSetState,
		"POST /restart": g.adminRestart,

		"GET /canaries":    func(*http.Request) (any, error) { return "the gateway's own files are untouched", g.Canaries() },
		"POST /canaries":   func(*http.Request) (any, error) { return "recorded", g.RecordCanaries() },
		"GET /load-errors": func(*http.Request) (any, error) { return notNil(g.LoadErrors()), nil },
		"GET /loaded/{dir...}": func(r *http.Request) (any, error) {
			return g.Loaded(r.PathValue("dir")), nil
		},

		"GET /requests": func(*http.Request) (any, error) {
			return map[string]any{"counts": g.Counts(), "requests": notNil(g.Requests()), "violations": notNil(g.Violations())}, nil
		},
		"DELETE /requests": func(*http.Request) (any, error) { g.ResetRequests(); return "forgotten", nil },

		"GET /faults":       func(*http.Request) (any, error) { return g.Faults(), nil },
		"POST /faults":      adminBody(func(_ *http.Request, f Fault) (any, error) { return "in force", g.Fault(f) }),
		"DELETE /faults":    func(*http.Request) (any, error) { g.ClearFaults(); return "cleared", nil },
		"POST /scan-faults": adminBody(g.adminScanFault),
		"POST /load-faults": adminBody(func(_ *http.Request, list []LoadFault) (any, error) { return "in force", g.FaultLoads(list...) }),
		"POST /scan/{kind}": func(r *http.Request) (any, error) { return "scanned", g.Scan(r.PathValue("kind")) },

		"POST /locks": adminBody(g.adminLock),
		"DELETE /locks/{kind}": func(r *http.Request) (any, error) {
			return "released", g.ReleaseLock(r.PathValue("kind"))
		},

		"POST /designers":           adminBody(g.adminDesigner),
		"DELETE /designers/{id}":    func(r *http.Request) (any, error) { return "closed", g.CloseDesigner(r.PathValue("id")) },
		"POST /designers/{id}/open": adminBody(g.adminOpen),
		"POST /designers/{id}/save": adminBody(g.adminSave),

		"POST /config": adminBody(g.adminConfig),
		"POST /tokens": adminBody(g.adminToken),
		"POST /grants": adminBody(func(_ *http.Request, b struct{ Levels []string }) (any, error) {
			return "granted", g.Grant(b.Levels...)
		}),
		"POST /redundancy": adminBody(func(_ *http.Request, b struct{ ConfigAccess, PeerConnected bool }) (any, error) {
			g.SetConfigAccess(b.ConfigAccess, b.PeerConnected)
			return "set", nil
		}),
		"POST /noise": adminBody(func(_ *http.Request, b struct{ Kind Noise }) (any, error) {
			return "made", g.MakeNoise(b.Kind)
		}),
		"POST /advance": adminBody(func(_ *http.Request, b struct{ By Duration }) (any, error) {
			return "passed", g.Advance(time.Duration(b.By))
		}),
		"POST /pending-restarts": adminBody(func(_ *http.Request, b struct{ Tasks []string }) (any, error) {
			g.SetPendingRestarts(b.Tasks...)
			return "set", nil
		}),
		"POST /trial": adminBody(func(_ *http.Request, b struct{ Expired bool }) (any, error) {
			g.SetTrialExpired(b.Expired)
			return "set", nil
		}),
		"POST /certificate": adminBody(func(_ *http.Request, b struct{ Names []string }) (any, error) {
			return "renewed", g.RotateTLS(b.Names, time.Time{})
		}),
		"POST /log": adminBody(func(_ *http.Request, b struct{ Logger, Message string }) (any, error) {
			g.Log(b.Logger, b.Message)
			return "logged", nil
		}),
	}
}

func (g *Gateway) adminHandler() http.Handler {
	mux := http.NewServeMux()
	routes := g.adminRoutes()
	for pattern, handle := range routes {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			result, err := handle(r)
			if err != nil {
				adminAnswer(w, adminStatus(err), map[string]any{"errors": strings.Split(err.Error(), "\n")})
				return
			}
			adminAnswer(w, http.StatusOK, result)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		adminAnswer(w, http.StatusNotFound, map[string]any{"routes": slices.Sorted(maps.Keys(routes))})
	})
	return mux
}

func adminStatus(err error) int {
	if errors.Is(err, ErrConflict) {
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

func adminAnswer(w http.ResponseWriter, status int, result any) {
	if text, ok := result.(string); ok {
		result = map[string]string{"ok": text}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(result)
}

// adminBody decodes a JSON body. An unknown field is an error, so that a misspelled fault is noticed.
func adminBody[T any](handle func(*http.Request, T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var body T
		dec := json.NewDecoder(io.LimitReader(r.Body, 16<<20))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&body); err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
		return handle(r, body)
	}
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (g *Gateway) adminState(*http.Request) (any, error) {
	state, reason := g.State()
	return map[string]any{
		"state": state, "reason": reason, "url": g.URL(), "tlsUrl": g.TLSURL(),
		"scans": map[string]int{kindProjects: g.Scans(kindProjects), kindConfig: g.Scans(kindConfig)},
	}, nil
}

func (g *Gateway) adminSetState(r *http.Request) (any, error) {
	return adminBody(func(_ *http.Request, b struct{ State State }) (any, error) {
		if err := g.SetState(b.State); err != nil {
			return nil, err
		}
		return g.adminState(r)
	})(r)
}

func (g *Gateway) adminRestart(r *http.Request) (any, error) {
	return adminBody(func(_ *http.Request, b struct{ For Duration }) (any, error) {
		if err := g.Restart(time.Duration(b.For)); err != nil {
			return nil, err
		}
		return g.adminState(r)
	})(r)
}

func (g *Gateway) adminScanFault(_ *http.Request, b struct {
	Kind string
	ScanFault
	Delay Duration
}) (any, error) {
	b.ScanFault.Delay = time.Duration(b.Delay)
	return "in force", g.FaultScans(b.Kind, b.ScanFault)
}

func (g *Gateway) adminLock(_ *http.Request, b struct {
	Kind, Actor string
	For         Duration
}) (any, error) {
	return "held", g.HoldLock(b.Kind, b.Actor, time.Duration(b.For))
}

func (g *Gateway) adminDesigner(_ *http.Request, b struct{ User, Project string }) (any, error) {
	id, err := g.OpenDesigner(b.User, b.Project)
	return map[string]string{"id": id}, err
}

func (g *Gateway) adminOpen(r *http.Request, b struct{ Resource string }) (any, error) {
	return "opened", g.OpenResource(r.PathValue("id"), b.Resource)
}

func (g *Gateway) adminSave(r *http.Request, b struct {
	Resource string
	Files    map[string]string
	Force    bool
}) (any, error) {
	files := map[string][]byte{}
	for name, text := range b.Files {
		files[name] = []byte(text)
	}
	return "saved", g.SaveResource(r.Context(), r.PathValue("id"), b.Resource, files, b.Force)
}

func (g *Gateway) adminConfig(r *http.Request, b struct {
	Collection, Resource, Actor string
	Config                      json.RawMessage
}) (any, error) {
	return "saved", g.SaveConfig(r.Context(), b.Collection, b.Resource, b.Actor, b.Config)
}

func (g *Gateway) adminToken(_ *http.Request, b TokenSpec) (any, error) {
	issued, err := g.IssueToken(b)
	return map[string]string{"token": issued}, err
}
