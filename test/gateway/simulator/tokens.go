package simulator

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/datadir"
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

// authorize checks the token of a request. Everything except GET and HEAD needs Write.
func (g *Gateway) authorize(r *http.Request) (token, *refusal) {
	return g.authorizeFor(r, r.Method != http.MethodGet && r.Method != http.MethodHead)
}

func (g *Gateway) authorizeFor(r *http.Request, changes bool) (token, *refusal) {
	cfg := g.loadedConfig()
	name, key, ok := strings.Cut(r.Header.Get("X-Ignition-API-Token"), ":")
	t, known := tokensOf(cfg)[name]
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if !ok || !known || err != nil || subtle.ConstantTimeCompare([]byte(tokenHash(raw)), []byte(t.hash)) != 1 {
		return token{}, &refusal{http.StatusUnauthorized, "Unauthorized"}
	}
	if t.secure && r.TLS == nil {
		if g.opts.Unknowns.InsecureIs401 {
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
func (g *Gateway) IssueToken(spec TokenSpec) (string, error) {
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
	levels := ordered.Array{}
	for _, l := range spec.Levels {
		levels = append(levels, level(strings.Split(l, "/")))
	}
	doc := ordered.Object{
		{"profile", ordered.Object{{"type", "basic-token"}, {"secureChannelRequired", spec.Secure}, {"securityLevels", levels}}},
		{"settings", ordered.Object{{"tokenHash", tokenHash(raw)}}},
	}
	return spec.Name + ":" + spec.Key, g.putConfig("local", tokenType+"/"+spec.Name, "admin", doc)
}

// Grant makes the gateway's Read and Write permissions admit these security levels, in addition to the role
// Administrator and in place of earlier grants, like an administrator in the web interface. It takes effect at once.
func (g *Gateway) Grant(names ...string) error {
	grants := make([][]string, 0, len(names))
	for _, l := range names {
		grants = append(grants, strings.Split(l, "/"))
	}
	return g.putConfig("core", "ignition/security-properties", "admin", securityProperties(grants))
}

// putConfig writes config.json of a resource and loads it.
func (g *Gateway) putConfig(collection, name, actor string, doc ordered.Value) error {
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	dir := path.Join(datadir.ResourcesDir, collection, name)
	saved, err := g.saveResource(dir, resource.New(name, "A"), actor, map[string][]byte{"config.json": ordered.Pretty(doc)})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config = g.config.With(collection, saved)
	return nil
}
