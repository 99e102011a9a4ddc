package create

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
)

// The Secrets that a written GatewaySync names.
const (
	APISecret = "gateway-api"
	APIKey    = "apiKey"
)

// yamlWriter writes indented lines of YAML. Names of a repository are not trusted: a name must end neither a comment nor a scalar.
type yamlWriter struct {
	bytes.Buffer
}

// line writes a line. Its strings must be literals, or come from scalar, note or oneLine.
func (w *yamlWriter) line(indent int, format string, args ...any) {
	w.WriteString(strings.Repeat("  ", indent))
	fmt.Fprintf(w, format, args...)
	w.WriteString("\n")
}

// comment writes a comment, and breaks its text into lines of at most 110 bytes. A longer word has a line of its own.
func (w *yamlWriter) comment(indent int, format string, args ...any) {
	const width = 110
	line := ""
	for word := range strings.FieldsSeq(oneLine(fmt.Sprintf(format, args...))) {
		if line != "" && len(line)+len(word)+1 > width {
			w.line(indent, "# %s", line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	w.line(indent, "# %s", line)
}

// oneLine replaces what could end a comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || printable(string(r)) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// scalar returns a string as a YAML scalar. It is quoted if YAML would read the text as something else, and also if it has a character that
// is special in YAML.
func scalar(s string) string {
	var back any
	plainSafe := printable(s) && !strings.ContainsAny(s, "#\"'") && !strings.Contains(s, ": ")
	if plainSafe && yaml.Unmarshal([]byte("- "+s), &back) == nil {
		if list, ok := back.([]any); ok && len(list) == 1 && list[0] == s {
			return s
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b) // JSON is YAML
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always can be encoded
	return strings.TrimSpace(b.String())
}

// write returns the GatewaySync as YAML, with comments for the user.
func write(in Input, a *arrangement) []byte {
	w := &yamlWriter{}
	w.comment(0, "%s", a.title())
	w.line(0, "apiVersion: %s", v1alpha1.GroupVersion)
	w.line(0, "kind: %s", v1alpha1.KindGatewaySync)
	w.line(0, "metadata:")
	w.line(1, "name: %s", scalar(in.Name))
	if in.Namespace != "" {
		w.line(1, "namespace: %s", scalar(in.Namespace))
	}
	w.line(0, "spec:")
	w.git(in)
	w.line(1, "gateway:")
	w.line(2, "api:")
	if what := a.security(); what != "" {
		w.line(3, "secretName: %s # an API key, as the gateway shows it: name:key", APISecret)
		w.line(3, "secretKey: %s # agents make no keys of their own, because git has %s", APIKey, what)
	} else {
		w.line(3, "managed: true # each agent makes an API key for its own gateway")
	}
	w.line(1, "sync:")
	if len(a.excludes) > 0 {
		w.line(2, "defaults:")
		w.excludes(3, a.excludes)
	}
	w.line(2, "profiles:")
	for _, p := range a.profiles {
		w.profile(in.Name, a, p)
	}
	return w.Bytes()
}

// title describes the GatewaySync.
func (a *arrangement) title() string {
	only := a.profiles[0]
	switch n := len(a.profiles); {
	case n > 1 && n < len(numbers):
		return numbers[n] + " kinds of gateways from one repository, with a profile for each."
	case n > 1:
		return strconv.Itoa(n) + " kinds of gateways from one repository, with a profile for each."
	case only.gateways != nil:
		return fmt.Sprintf("A gateway for each folder in %s, with the name of the folder.", shown(only.gateways.path))
	}
	return "Gateways that all get the same files."
}

// security returns the resource of git that an agent would have to change to grant its own API key its permissions, or "".
func (a *arrangement) security() string {
	for _, name := range []string{"security-properties", "security-levels"} {
		for _, p := range a.profiles {
			for _, m := range p.mappings {
				for _, u := range m.units {
					if _, ok := u.singleton(name); ok {
						return name
					}
				}
			}
		}
	}
	return ""
}

var numbers = []string{2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight", 9: "Nine", 10: "Ten"}

func (w *yamlWriter) git(in Input) {
	w.line(1, "git:")
	w.line(2, "repo: %s%s", scalar(in.Git.Repo), note(in.RepoNote))
	w.line(2, "ref: %s", scalar(in.Git.Ref))
	if ca := in.Git.CASecretRef; ca != nil {
		w.ref(2, "caSecretRef", *ca)
	}
	c := in.Git.Auth
	if c == nil {
		return
	}
	w.line(2, "auth:%s", note(in.AuthNote))
	if t := c.Token; t != nil {
		w.line(3, "token:")
		w.ref(4, "secretRef", t.SecretRef)
	}
	if k := c.SSHKey; k != nil {
		w.line(3, "sshKey:")
		w.ref(4, "secretRef", k.SecretRef)
		if k.KnownHosts != nil {
			w.line(4, "knownHosts:")
			w.ref(5, "secretRef", k.KnownHosts.SecretRef)
		}
	}
	if g := c.GitHubApp; g != nil {
		w.line(3, "githubApp:")
		w.line(4, "appId: %d", g.AppID)
		w.line(4, "installationId: %d", g.InstallationID)
		w.ref(4, "privateKeySecretRef", g.PrivateKeySecretRef)
	}
}

// note returns a comment for the end of a line.
func note(text string) string {
	if text == "" {
		return ""
	}
	return " # " + oneLine(text)
}

func (w *yamlWriter) ref(indent int, field string, ref v1alpha1.SecretKeyRef) {
	w.line(indent, "%s:", field)
	w.line(indent+1, "name: %s", scalar(ref.Name))
	w.line(indent+1, "key: %s", scalar(ref.Key))
}

// excludes writes patterns, with the reason above the first of those that have the same.
func (w *yamlWriter) excludes(indent int, list []exclude) {
	w.line(indent, "excludePatterns:")
	why := ""
	for _, x := range list {
		if x.why != why {
			w.comment(indent+1, "%s", x.why)
			why = x.why
		}
		w.line(indent+1, "- %s", scalar(x.pattern))
	}
}

// annotations returns the annotations that the pods of a profile need.
func (a *arrangement) annotations(name string, p *profile) []string {
	lines := []string{v1alpha1.AnnotationInject + `: "true"`, v1alpha1.AnnotationCRName + ": " + scalar(name)}
	if p.name != v1alpha1.DefaultProfile {
		lines = append(lines, v1alpha1.AnnotationProfile+": "+scalar(p.name))
	}
	if p.sharedName() != nil && (len(a.profiles) > 1 || p.gateways != nil) {
		lines = append(lines, v1alpha1.AnnotationSystemNameTemplate+`: "{{.GatewayName}}"`)
	}
	return lines
}

// pods returns the annotations by profile.
func (a *arrangement) pods(name string) []Pods {
	list := make([]Pods, 0, len(a.profiles))
	for _, p := range a.profiles {
		list = append(list, Pods{p.name, a.annotations(name, p)})
	}
	return list
}

func (w *yamlWriter) profile(name string, a *arrangement, p *profile) {
	const indent = 3
	w.comment(indent, "Annotations of the pods:")
	for _, line := range a.annotations(name, p) {
		w.line(indent, "#   %s", line)
	}
	if p.gateways != nil {
		w.comment(indent, "Their label app.kubernetes.io/name is the name of the gateway, and of its folder in %s.", shown(p.gateways.path))
	}
	switch modes := p.modes(); len(modes) {
	case 0:
	case 1:
		w.comment(indent, "For a gateway of the deployment mode %s: start it with -Dignition.config.mode=%[1]s, and add %s: %[1]s.",
			plan.Enumerate(modes, 1), v1alpha1.AnnotationDeploymentMode)
	default:
		w.comment(indent, "For a gateway of a deployment mode (%s): start it with -Dignition.config.mode=MODE, and add %s: MODE.",
			plan.Enumerate(modes, 5), v1alpha1.AnnotationDeploymentMode)
	}
	w.line(indent, "%s:", scalar(p.name))
	if len(p.excludes) > 0 {
		w.excludes(indent+1, p.excludes)
	}
	w.line(indent+1, "mappings:")
	for _, m := range p.mappings {
		if m.shared {
			w.comment(indent+2, "Shared: %s.", m.content())
		}
		w.line(indent+2, "- source: %s", scalar(m.source))
		w.line(indent+3, "destination: %s", scalar(m.dest))
		if m.required {
			w.line(indent+3, "required: true")
		}
	}
}

// modes lists the collections of deployment modes.
func (p *profile) modes() []string {
	var modes []string
	for _, m := range p.mappings {
		for _, u := range m.units {
			for _, c := range u.collections {
				if !slices.Contains([]string{"system", "external", "core", "local"}, c.name) && !slices.Contains(modes, c.name) {
					modes = append(modes, c.name)
				}
			}
		}
	}
	slices.Sort(modes)
	return modes
}

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
