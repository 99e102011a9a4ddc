package create

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/internal/secret"
)

// The keys of the Secrets, which are those that the documentation names.
const (
	TokenKey      = "token"
	SSHKey        = "identity"
	KnownHostsKey = "known_hosts"
	AppKey        = "private-key.pem"
	CAKey         = "ca.crt"
)

// TokenData returns the data of a Secret with a token for git.
func TokenData(token secret.String) (map[string][]byte, error) {
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return nil, errors.New("the token has a space or a line end: the file must have the token and nothing else")
	}
	return map[string][]byte{TokenKey: []byte(token.Reveal())}, nil
}

// SSHData returns the data of a Secret with an ssh key. knownHosts is empty if the keys of the host are built in.
func SSHData(key secret.String, knownHosts string) (map[string][]byte, error) {
	if err := repo.CheckSSHKey(key); err != nil {
		return nil, err
	}
	data := map[string][]byte{SSHKey: []byte(key.Reveal() + "\n")}
	if knownHosts != "" {
		data[KnownHostsKey] = []byte(strings.TrimRight(knownHosts, "\n") + "\n")
	}
	return data, nil
}

// AppData returns the data of a Secret with the key of a GitHub App.
func AppData(key secret.String) (map[string][]byte, error) {
	if text := key.Reveal(); !strings.HasPrefix(text, "-----BEGIN ") || !strings.Contains(text, "PRIVATE KEY-----") {
		return nil, errors.New("the file is not a private key in PEM format: use the file that GitHub generated for the app")
	}
	return map[string][]byte{AppKey: []byte(key.Reveal() + "\n")}, nil
}

// APIKeyData returns the data of a Secret with the API key of a gateway.
func APIKeyData(key secret.String) (map[string][]byte, error) {
	name, value, ok := strings.Cut(key.Reveal(), ":")
	if !ok || name == "" || value == "" || strings.ContainsFunc(key.Reveal(), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return nil, errors.New("the file has no API key: it must have the whole text that the gateway shows once, NAME:KEY, and nothing else")
	}
	return map[string][]byte{APIKey: []byte(key.Reveal())}, nil
}

// WebhookData returns the data of a Secret with a new random token of 256 bits.
func WebhookData() map[string][]byte {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return map[string][]byte{TokenKey: []byte(base64.RawURLEncoding.EncodeToString(raw[:]))}
}

// Secret returns a Secret. namespace may be "".
func Secret(name, namespace string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Type:       corev1.SecretTypeOpaque, Data: data,
	}
}

// SecretYAML returns the YAML of a Secret, with the values in base64.
func SecretYAML(s *corev1.Secret) ([]byte, error) { return yaml.Marshal(s) }
