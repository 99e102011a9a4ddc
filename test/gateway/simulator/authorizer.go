package simulator

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/access"
)

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

// IssueToken creates an API token like an administrator in the gateway's web interface: it is valid at once, and
// replaces one of the same name. It returns <name>:<key>.
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
