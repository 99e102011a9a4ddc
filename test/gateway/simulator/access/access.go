// Package access decides from a gateway's configuration what its API tokens may do.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// TokenType is the module and the type of API tokens. PermissionsPath is the path of the resource with the permissions, and
// LevelsPath that of the resource with the security levels.
const (
	TokenType       = "ignition/api-token"
	PermissionsPath = "ignition/security-properties"
	LevelsPath      = "ignition/security-levels"
)

// The errors of Check.
var (
	ErrUnknown   = errors.New("the token is not known")
	ErrInsecure  = errors.New("the token requires a secure connection")
	ErrForbidden = errors.New("the token does not have the permission")
)

// Rules are what no source settles about tokens.
type Rules struct {
	NotLocal bool // a token of the collection local is not known
	Declared bool // a token has only levels that ignition/security-levels declares
}

// Check returns the name of the token in header, <name>:<key>, and an error unless the token may read or, if write is set,
// write. secure is whether the request came over TLS.
func (rules Rules) Check(c resource.Config, header string, secure, write bool) (name string, err error) {
	name, key, ok := strings.Cut(header, ":")
	t, known := rules.tokens(c)[name]
	raw, err := base64.RawURLEncoding.DecodeString(key)
	if !ok || !known || err != nil || subtle.ConstantTimeCompare([]byte(hash(raw)), []byte(t.hash)) != 1 {
		return "", ErrUnknown
	}
	if t.secure && !secure {
		return name, ErrInsecure
	}
	// Write alone is enough. Without it, reading needs both Read and Access.
	allowed := permissionOf(c, "writePermissions").admits(t)
	if !write {
		allowed = allowed || permissionOf(c, "readPermissions").admits(t) && permissionOf(c, "accessPermissions").admits(t)
	}
	if !allowed {
		return name, ErrForbidden
	}
	return name, nil
}

// token is an API token as its resource describes it.
type token struct {
	hash   string // base64url without padding of the SHA-256 of the raw key
	secure bool   // requires a secure connection
	levels []string
}

// tokens returns the API tokens of a configuration by name.
func (rules Rules) tokens(c resource.Config) map[string]token {
	all := map[string]token{}
	declared := declaredLevels(c)
	for _, name := range c.Names(TokenType) {
		r, collection, _ := c.Effective(name)
		short := strings.TrimPrefix(name, TokenType+"/")
		if !r.Enabled() || short == name || rules.NotLocal && collection == "local" {
			continue
		}
		t := token{secure: true}
		t.hash, _ = ordered.Dig(r.Config, "settings", "tokenHash").(string)
		if secure, ok := ordered.Dig(r.Config, "profile", "secureChannelRequired").(bool); ok {
			t.secure = secure
		}
		t.levels = levelPaths(ordered.Dig(r.Config, "profile", "securityLevels"))
		// Roles belong to users: a token never has one, whatever its resource says.
		t.levels = slices.DeleteFunc(t.levels, func(l string) bool { return strings.HasPrefix(l, "Authenticated/Roles") })
		if rules.Declared {
			t.levels = slices.DeleteFunc(t.levels, func(l string) bool {
				return !slices.ContainsFunc(declared, func(d string) bool { return d == l || strings.HasPrefix(d, l+"/") })
			})
		}
		all[short] = t
	}
	return all
}

// declaredLevels lists the leaves of ignition/security-levels.
func declaredLevels(c resource.Config) []string {
	r, _, _ := c.Effective(LevelsPath)
	if r == nil {
		return nil
	}
	return levelPaths(ordered.Dig(r.Config, "securityLevels"))
}

// Levels returns the configuration of ignition/security-levels that declares these levels.
func Levels(levels ...string) ordered.Value {
	return ordered.Object{{"securityLevels", trees(levels)}}
}

// permission is one of the gateway's permission lists.
type permission struct {
	all    bool // AllOf, otherwise AnyOf
	levels []string
}

// permissionOf returns a permission list of a configuration.
func permissionOf(c resource.Config, name string) permission {
	r, _, _ := c.Effective(PermissionsPath)
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

func hash(raw []byte) string {
	sum := sha256.Sum256(raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Token returns the configuration of an API token with the security levels. raw is its decoded key.
func Token(raw []byte, levels []string, secure bool) ordered.Value {
	return ordered.Object{
		{"profile", ordered.Object{{"type", "basic-token"}, {"secureChannelRequired", secure}, {"securityLevels", trees(levels)}}},
		{"settings", ordered.Object{{"tokenHash", hash(raw)}}},
	}
}

// Permissions returns a fresh gateway's permissions: Read and Write need the role Administrator, which no API token can
// have, or one of the granted levels, such as Authenticated/ApiKeys/Deploy.
func Permissions(granted ...string) ordered.Value {
	levels := append(trees([]string{"Authenticated/Roles/Administrator"}), trees(granted)...)
	permission := ordered.Object{{"securityLevels", levels}, {"type", "AnyOf"}}
	return ordered.Object{
		{"accessPermissions", ordered.Object{{"securityLevels", ordered.Array{}}, {"type", "AnyOf"}}},
		{"designerAuthStrategy", "CLASSIC"},
		{"readPermissions", permission},
		{"systemAuthProfile", "default"},
		{"userInactivityTimeout", json.Number("10")},
		{"writePermissions", permission},
	}
}

// trees returns security levels as the configuration has them.
func trees(levels []string) ordered.Array {
	list := make(ordered.Array, 0, len(levels))
	for _, l := range levels {
		list = append(list, tree(strings.Split(l, "/")))
	}
	return list
}

// tree returns a security level as a tree of names.
func tree(names []string) ordered.Value {
	if len(names) == 0 {
		return nil
	}
	children := ordered.Array{}
	if len(names) > 1 {
		children = ordered.Array{tree(names[1:])}
	}
	return ordered.Object{{"children", children}, {"name", names[0]}}
}
