package simulator

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"

	"stoker.io/stoker/test/gateway/simulator/access"
)

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
