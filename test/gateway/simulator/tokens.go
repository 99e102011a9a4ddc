package simulator

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// token is an API token as its resource describes it.
type token struct {
	name   string
	hash   string // base64url without padding of the SHA-256 of the raw key
	secure bool   // requires a secure connection
	levels []string
}

const tokenType = "ignition/api-token"

// tokensOf returns the API tokens of a configuration.
func tokensOf(c resource.Config) map[string]token {
	all := map[string]token{}
	for _, name := range c.Names(tokenType) {
		r, _, _ := c.Effective(name)
		short := strings.TrimPrefix(name, tokenType+"/")
		if !r.Enabled() || short == name {
			continue
		}
		t := token{name: short, secure: true}
		t.hash, _ = ordered.Dig(r.Config, "settings", "tokenHash").(string)
		if secure, ok := ordered.Dig(r.Config, "profile", "secureChannelRequired").(bool); ok {
			t.secure = secure
		}
		t.levels = levelPaths(ordered.Dig(r.Config, "profile", "securityLevels"))
		// Roles belong to users: a token never has one, whatever its resource says.
		t.levels = slices.DeleteFunc(t.levels, func(l string) bool { return strings.HasPrefix(l, "Authenticated/Roles") })
		all[short] = t
	}
	return all
}

// permission is one of the gateway's permission lists.
type permission struct {
	all    bool // AllOf, otherwise AnyOf
	levels []string
}

// permissionOf returns a permission list of a configuration.
func permissionOf(c resource.Config, name string) permission {
	r, _, _ := c.Effective("ignition/security-properties")
	if r == nil {
		return permission{levels: []string{"Authenticated/Roles/Administrator"}}
	}
	kind, _ := ordered.Dig(r.Config, name, "type").(string)
	return permission{all: kind == "AllOf", levels: levelPaths(ordered.Dig(r.Config, name, "securityLevels"))}
}

// admits reports whether a token has the levels that the list requires. An empty list admits every token.
func (p permission) admits(t token) bool {
	has := func(want string) bool {
		return slices.ContainsFunc(t.levels, func(l string) bool { return l == want || strings.HasPrefix(l, want+"/") })
	}
	switch {
	case len(p.levels) == 0:
		return true
	case p.all:
		return !slices.ContainsFunc(p.levels, func(l string) bool { return !has(l) })
	}
	return slices.ContainsFunc(p.levels, has)
}

// levelPaths lists the leaves of trees of {name, children}.
func levelPaths(v ordered.Value) []string {
	list, _ := v.(ordered.Array)
	var paths []string
	for _, item := range list {
		name, _ := ordered.Dig(item, "name").(string)
		if name == "" {
			continue
		}
		below := levelPaths(ordered.Dig(item, "children"))
		if len(below) == 0 {
			paths = append(paths, name)
		}
		for _, b := range below {
			paths = append(paths, name+"/"+b)
		}
	}
	return paths
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

// authorize checks the token of a request. Everything except GET and HEAD needs Write.
func (a *authorizer) authorize(r *http.Request) (token, *refusal) {
	return a.authorizeFor(r, r.Method != http.MethodGet && r.Method != http.MethodHead)
}

func (a *authorizer) authorizeFor(r *http.Request, changes bool) (token, *refusal) {
	cfg := a.data.loadedConfig()
	name, key, ok := strings.Cut(r.Header.Get("X-Ignition-API-Token"), ":")
	t, known := tokensOf(cfg)[name]
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if !ok || !known || err != nil || subtle.ConstantTimeCompare([]byte(tokenHash(raw)), []byte(t.hash)) != 1 {
		return token{}, &refusal{http.StatusUnauthorized, "Unauthorized"}
	}
	if t.secure && r.TLS == nil {
		if a.opts.Unknowns.InsecureIs401 {
			return t, &refusal{http.StatusUnauthorized, "Unauthorized"}
		}
		return t, &refusal{http.StatusForbidden, "Forbidden"}
	}
	// Write implies Read, and Read implies Access.
	read, write := permissionOf(cfg, "readPermissions"), permissionOf(cfg, "writePermissions")
	allowed := write.admits(t)
	if !changes {
		allowed = allowed || read.admits(t) && permissionOf(cfg, "accessPermissions").admits(t)
	}
	if !allowed {
		return t, &refusal{http.StatusForbidden, "Forbidden"}
	}
	return t, nil
}

func tokenHash(raw []byte) string {
	sum := sha256.Sum256(raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

type tokenKey struct{}

// tokenOf returns the token of an authorized request.
func tokenOf(r *http.Request) token {
	t, _ := r.Context().Value(tokenKey{}).(token)
	return t
}

// requireToken requires a token with the right permission.
func (a *authorizer) requireToken(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.opts.before83() {
			noRoute(w, r)
			return
		}
		t, refused := a.authorize(r)
		if refused != nil && r.URL.Path == "/openapi.json" && a.opts.Unknowns.OpenAPIIs403 {
			refused = &refusal{http.StatusForbidden, "Forbidden"}
		}
		if refused != nil {
			htmlError(w, refused.status, refused.message)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, t)))
	}
}
