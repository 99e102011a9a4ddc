package simulator

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/access"
)

// admin is the simulator's own interface, which a real gateway does not have.
type admin struct{ g *Gateway }

func (a admin) routes() map[string]func(*http.Request) (any, error) {
	g := a.g
	return map[string]func(*http.Request) (any, error){
		"GET /state":    a.state,
		"POST /state":   a.setState,
		"POST /restart": a.restart,

		"GET /canaries":    func(*http.Request) (any, error) { return "the gateway's own files are untouched", g.Canaries.Check() },
		"POST /canaries":   func(*http.Request) (any, error) { return "recorded", g.Canaries.Record() },
		"GET /load-errors": func(*http.Request) (any, error) { return notNil(g.Data.LoadErrors()), nil },
		"GET /loaded/{dir...}": func(r *http.Request) (any, error) {
			return g.Data.Loaded(r.PathValue("dir")), nil
		},

		"GET /requests": func(*http.Request) (any, error) {
			return map[string]any{
				"counts": g.Requests.Counts(), "requests": notNil(g.Requests.List()), "violations": notNil(g.Requests.Violations()),
			}, nil
		},
		"DELETE /requests": func(*http.Request) (any, error) { g.Requests.Reset(); return "forgotten", nil },

		"GET /faults":       func(*http.Request) (any, error) { return g.Faults.List(), nil },
		"POST /faults":      adminBody(func(_ *http.Request, f Fault) (any, error) { return "in force", g.Faults.add(f, false) }),
		"DELETE /faults":    func(*http.Request) (any, error) { g.Faults.Clear(); return "cleared", nil },
		"POST /scan-faults": adminBody(a.scanFault),
		"POST /scan/{kind}": func(r *http.Request) (any, error) { return "scanned", g.Scans.Run(r.PathValue("kind")) },

		"POST /locks": adminBody(a.lock),
		"DELETE /locks/{kind}": func(r *http.Request) (any, error) {
			return "released", g.Locks.Release(r.PathValue("kind"))
		},

		"POST /designers":           adminBody(a.designer),
		"DELETE /designers/{id}":    func(r *http.Request) (any, error) { return "closed", g.Designers.Close(r.PathValue("id")) },
		"POST /designers/{id}/open": adminBody(a.open),
		"POST /designers/{id}/save": adminBody(a.save),

		"POST /redundancy": adminBody(func(_ *http.Request, b struct{ ConfigAccess, PeerConnected bool }) (any, error) {
			g.Redundancy.SetConfigAccess(b.ConfigAccess, b.PeerConnected)
			return "set", nil
		}),
	}
}

func (a admin) handler() http.Handler {
	mux := http.NewServeMux()
	routes := a.routes()
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

func (a admin) state(*http.Request) (any, error) {
	state, reason := a.g.State()
	return map[string]any{
		"state": state, "reason": reason, "url": a.g.URL(), "tlsUrl": a.g.TLSURL(),
		"scans": map[string]int{kindProjects: a.g.Scans.Completed(kindProjects), kindConfig: a.g.Scans.Completed(kindConfig)},
	}, nil
}

func (a admin) setState(r *http.Request) (any, error) {
	return adminBody(func(_ *http.Request, b struct{ State State }) (any, error) {
		if err := a.g.SetState(b.State); err != nil {
			return nil, err
		}
		return a.state(r)
	})(r)
}

func (a admin) restart(r *http.Request) (any, error) {
	return adminBody(func(_ *http.Request, b struct{ For Duration }) (any, error) {
		if err := a.g.Restart(time.Duration(b.For)); err != nil {
			return nil, err
		}
		return a.state(r)
	})(r)
}

func (a admin) scanFault(_ *http.Request, b struct {
	Kind string
	ScanFault
	Delay Duration
}) (any, error) {
	b.ScanFault.Delay = time.Duration(b.Delay)
	return "in force", a.g.Scans.Fault(b.Kind, b.ScanFault)
}

func (a admin) lock(_ *http.Request, b struct {
	Kind, Actor string
	For         Duration
}) (any, error) {
	return "held", a.g.Locks.Hold(b.Kind, b.Actor, time.Duration(b.For))
}

func (a admin) designer(_ *http.Request, b struct{ User, Project string }) (any, error) {
	id, err := a.g.Designers.Open(b.User, b.Project)
	return map[string]string{"id": id}, err
}

func (a admin) open(r *http.Request, b struct{ Resource string }) (any, error) {
	return "opened", a.g.Designers.OpenResource(r.PathValue("id"), b.Resource)
}

func (a admin) save(r *http.Request, b struct {
	Resource string
	Files    map[string]string
	Force    bool
}) (any, error) {
	files := map[string][]byte{}
	for name, text := range b.Files {
		files[name] = []byte(text)
	}
	return "saved", a.g.Designers.SaveResource(r.Context(), r.PathValue("id"), b.Resource, files, b.Force)
}

// refusal is an error answer in place of a route's answer.
type refusal struct {
	status  int
	message string
}

// authorizer checks the tokens of requests.
type authorizer struct {
	opts *Options
	data *Data
}

// authorize checks the token of a request, and returns its name. Everything except GET and HEAD needs Write.
func (a *authorizer) authorize(r *http.Request) (string, *refusal) {
	return a.authorizeFor(r, r.Method != http.MethodGet && r.Method != http.MethodHead)
}

func (a *authorizer) authorizeFor(r *http.Request, write bool) (string, *refusal) {
	rules := access.Rules{NotLocal: a.opts.NoLocalTokens, Declared: a.opts.DeclaredLevels}
	name, err := rules.Check(a.data.loadedConfig(), r.Header.Get("X-Ignition-API-Token"), r.TLS != nil, write)
	switch {
	case err == nil:
		return name, nil
	case errors.Is(err, access.ErrUnknown), errors.Is(err, access.ErrInsecure) && a.opts.Unknowns.InsecureIs401:
		return name, &refusal{http.StatusUnauthorized, "Unauthorized"}
	}
	return name, &refusal{http.StatusForbidden, "Forbidden"}
}

type tokenKey struct{}

// tokenOf returns the name of an authorized request's token.
func tokenOf(r *http.Request) string {
	name, _ := r.Context().Value(tokenKey{}).(string)
	return name
}

// requireToken requires a token with the right permission.
func (a *authorizer) requireToken(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.opts.before83() {
			noRoute(w, r)
			return
		}
		name, refused := a.authorize(r)
		if refused != nil && r.URL.Path == "/openapi.json" && a.opts.Unknowns.OpenAPIIs403 {
			refused = &refusal{http.StatusForbidden, "Forbidden"}
		}
		if refused != nil {
			htmlError(w, refused.status, refused.message)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, name)))
	}
}

// Administrator changes the configuration like an administrator in the gateway's web interface.
type Administrator struct {
	data *Data
}

// TokenSpec describes an API token.
type TokenSpec struct {
	Name string
	// Key is the key part of the token; "" generates one.
	Key string
	// Levels are security levels such as Authenticated/ApiKeys/Deploy.
	Levels []string
	// Secure is "Require secure connections".
	Secure bool
}

// IssueToken creates an API token in the collection local, like an administrator in the gateway's web interface: it is valid
// at once, and replaces one of the same name. It returns <name>:<key>.
func (a *Administrator) IssueToken(spec TokenSpec) (string, error) {
	if spec.Name == "" || strings.ContainsAny(spec.Name, "/:\\") {
		return "", errors.New("the name of a token holds neither slash nor colon")
	}
	if spec.Key == "" {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw)
		spec.Key = base64.RawURLEncoding.EncodeToString(raw)
	}
	raw, err := base64.RawURLEncoding.DecodeString(spec.Key)
	if err != nil {
		return "", errors.New("a token's key is base64url without padding")
	}
	return spec.Name + ":" + spec.Key, a.data.putConfig("local", access.TokenType+"/"+spec.Name, "admin", access.Token(raw, spec.Levels, spec.Secure))
}

// Grant makes the gateway's Read and Write permissions admit these security levels, in addition to the role
// Administrator and in place of earlier grants, like an administrator in the web interface. It takes effect at once.
func (a *Administrator) Grant(levels ...string) error {
	return a.data.putConfig("core", access.PermissionsPath, "admin", access.Permissions(levels...))
}
