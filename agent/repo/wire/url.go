package wire

import (
	"cmp"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

const maxURL = 2048 // bytes

// URL is the address of a repository: of a git server (https, http or ssh), in a registry (oci), or a directory of this machine. It
// keeps credentials of the address, and never prints them.
type URL struct {
	scheme string // https, http, oci, oci+http, ssh or file
	host   string // lower case, with the port if it is not the default of the scheme; empty for file
	path   string // decoded; absolute, except for ssh, where it may be relative to a home directory
	// Two pointers, because package fmt prints unexported fields without their String methods, and follows one pointer.
	login **login
}

// login is the user and the password of an address.
type login struct{ username, password secret.String }

// ParseURL reads the address of a repository: https://, http://, oci://, oci+http://, ssh:// (also as git+ssh:// or ssh+git://),
// user@host:path, file:// or the absolute path of a directory. An error never contains the address, which may have a password.
func ParseURL(s string) (URL, error) {
	switch {
	case s == "":
		return URL{}, badURL("it is empty: set the address of the repository")
	case len(s) > maxURL:
		return URL{}, badURL("it is longer than %d bytes", maxURL)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return URL{}, badURL("it contains a control character or invalid UTF-8")
	case strings.HasPrefix(s, "-"):
		return URL{}, badURL("it starts with a dash")
	case filepath.IsAbs(s):
		return URL{scheme: "file", path: filepath.Clean(s)}, nil
	case strings.ContainsFunc(s, unicode.IsSpace):
		return URL{}, badURL("it contains a space: write %%20 for one in the path")
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return parseSCP(s)
	}
	switch strings.ToLower(scheme) {
	case "https", "http":
		return parseHTTP(s)
	case "oci", "oci+http":
		return parseOCI(s)
	case "file":
		return parseFile(rest)
	case "ssh", "git+ssh", "ssh+git":
		return parseSSH("ssh://" + rest)
	}
	return URL{}, badURL("its scheme is not supported: use https://, ssh://, http://, oci://, file:// or an absolute directory")
}

// Plaintext reports whether credentials and content travel unencrypted.
func (u URL) Plaintext() bool { return u.scheme == "http" || u.scheme == "oci+http" }

// Registry reports whether the address names artifacts of a registry instead of a git repository.
func (u URL) Registry() bool { return u.scheme == "oci" || u.scheme == "oci+http" }

// Host returns the host in lower case, with the port if it is not the default of the scheme.
func (u URL) Host() string { return u.host }

// Local reports whether the repository is a directory of this machine.
func (u URL) Local() bool { return u.scheme == "file" }

// Path returns the path of the address, or the directory of a Local URL.
func (u URL) Path() string { return u.path }

// SSH reports whether the repository is reached over ssh.
func (u URL) SSH() bool { return u.scheme == "ssh" }

// IsZero reports whether u is the zero URL.
func (u URL) IsZero() bool { return u.scheme == "" }

// String returns the address without credentials.
func (u URL) String() string {
	switch {
	case u.Local():
		return u.path
	case u.SSH() && strings.HasPrefix(u.path, "~"):
		return (&url.URL{Scheme: u.scheme, Host: u.host, Path: "/" + u.path}).String()
	case u.SSH() && !strings.HasPrefix(u.path, "/"):
		return u.host + ":" + u.path
	}
	return (&url.URL{Scheme: u.scheme, Host: u.host, Path: u.path}).String()
}

// GoString implements fmt.GoStringer, without credentials.
func (u URL) GoString() string { return strconv.Quote(u.String()) }

// LogValue implements slog.LogValuer.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText implements encoding.TextMarshaler.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// credentials returns the user name and password of the address, "" if there are none.
func (u URL) credentials() (username, password string) {
	if u.login == nil {
		return "", ""
	}
	return (*u.login).username.Reveal(), (*u.login).password.Reveal()
}

// origin returns the scheme, host and port to which the client may send credentials.
func (u URL) origin() string { return u.scheme + "://" + u.host }

func parseHTTP(s string) (URL, error) {
	p, err := parseAddress(s)
	if err != nil {
		return URL{}, err
	}
	u := URL{scheme: strings.ToLower(p.Scheme), path: strings.TrimRight(p.Path, "/")}
	u.host = canonicalHost(u.scheme, p)
	if p.User != nil {
		password, _ := p.User.Password()
		u.setLogin(p.User.Username(), password)
	}
	return u, nil
}

// ociPath is the name of a repository in a registry: the rule of the OCI distribution specification.
var ociPath = regexp.MustCompile(`^/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)

func parseOCI(s string) (URL, error) {
	p, err := parseAddress(s)
	if err != nil {
		return URL{}, err
	}
	u := URL{scheme: strings.ToLower(p.Scheme), path: strings.TrimRight(p.Path, "/")}
	u.host = canonicalHost(u.scheme, p)
	switch {
	case p.User != nil:
		return URL{}, badURL("it has a user or a password: put credentials into a Secret, and name it in git.auth.token")
	case strings.ContainsAny(u.path, ":@"):
		return URL{}, badURL("it has a tag or a digest: put that into git.ref")
	case !ociPath.MatchString(u.path):
		return URL{}, badURL("its path is not the name of a repository in a registry, such as oci://registry.example.com/plants/line")
	}
	return u, nil
}

func (u *URL) setLogin(username, password string) {
	l := &login{secret.New(username), secret.New(password)}
	u.login = &l
}

// parseAddress reads an address, and checks the parts that https and ssh addresses have in common.
func parseAddress(s string) (*url.URL, error) {
	p, err := url.Parse(s)
	if err != nil {
		return nil, badURL("it cannot be read: check host, port and percent signs")
	}
	switch {
	case p.RawQuery != "" || p.ForceQuery:
		return nil, badURL("it contains a question mark: write %%3F for one in the path; credentials belong into a Secret")
	case p.Fragment != "" || strings.HasSuffix(s, "#"):
		return nil, badURL("it contains a #: write %%23 for one in the path; set spec.git.ref for a branch or tag")
	case p.Opaque != "" || !validHost(p.Hostname()):
		return nil, badURL("its host is empty or not a host name (write international names in punycode)")
	case !validPort(p.Host, p.Port()):
		return nil, badURL("its port is not a number from 1 to 65535")
	case strings.ContainsFunc(p.Path, unicode.IsControl) || !utf8.ValidString(p.Path):
		return nil, badURL("its path contains an encoded control character or invalid UTF-8")
	}
	if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
		return nil, badURL("its path does not start with a slash")
	}
	return p, nil
}

func parseFile(rest string) (URL, error) {
	host, path, _ := strings.Cut(rest, "/")
	if host != "" && !strings.EqualFold(host, "localhost") {
		return URL{}, badURL("a file:// address has three slashes and no host: file:///srv/git/plant.git")
	}
	path, err := url.PathUnescape("/" + path)
	if err != nil || strings.ContainsFunc(path, unicode.IsControl) || !utf8.ValidString(path) {
		return URL{}, badURL("its path cannot be read: check the percent signs")
	}
	if !filepath.IsAbs(filepath.FromSlash(path)) {
		return URL{}, badURL("its path is not absolute")
	}
	return URL{scheme: "file", path: filepath.Clean(filepath.FromSlash(path))}, nil
}

func badURL(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "git.repo is not valid: "+format, args...)
}

// validHost reports whether h is a DNS name or an IP address. It refuses names that a program could read as an option.
func validHost(h string) bool {
	if net.ParseIP(h) != nil {
		return true
	}
	if h == "" || len(h) > 253 || h[0] == '-' || h[0] == '.' {
		return false
	}
	for _, c := range []byte(h) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return true
}

func validPort(hostport, port string) bool {
	if port == "" {
		return !strings.HasSuffix(hostport, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

var defaultPorts = map[string]string{"https": "443", "oci": "443", "http": "80", "oci+http": "80", "ssh": "22"}

// canonicalHost returns the host in lower case, with the port unless it is the default of the scheme.
func canonicalHost(scheme string, u *url.URL) string {
	return httpclient.CanonicalHost(u, defaultPorts[scheme])
}

func bracketIPv6(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

const (
	sshPort        = "22"
	defaultSSHUser = "git" // if the address has no user
	maxSSHUser     = 64    // bytes
)

// parseSSH reads ssh://user@host:port/path. As in git, a path that starts with ~ is relative to a home directory.
func parseSSH(s string) (URL, error) {
	p, err := parseAddress(s)
	if err != nil {
		return URL{}, err
	}
	u := URL{scheme: "ssh", host: canonicalHost("ssh", p), path: strings.TrimRight(p.Path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if u.path == "" {
		return URL{}, badURL("it names no repository: add a path after the host")
	}
	if p.User == nil {
		return u, nil
	}
	if _, ok := p.User.Password(); ok {
		return URL{}, badURL("it contains a password, which ssh does not use: set a private key in git.auth.sshKey, and treat the password as compromised")
	}
	return u.withUser(p.User.Username())
}

// parseSCP reads the form user@host:path. For other text without a scheme, it returns an error that says what is wrong.
func parseSCP(s string) (URL, error) {
	if strings.Contains(s, "::") && !strings.Contains(s, "[") {
		return URL{}, badURL("remote helpers (name::address) are never run: use https:// or an absolute directory")
	}
	user, rest, hasUser := strings.Cut(s, "@")
	if !hasUser {
		user, rest = "", s
	}
	host, path, ok := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		host, path, ok = strings.Cut(rest[1:], "]:")
	}
	switch {
	case !ok || strings.Contains(host, "/"):
		return URL{}, badURL("it is neither https:// nor ssh:// nor user@host:path nor the absolute path of a directory (relative paths are not supported)")
	case slices.Contains([]string{"https", "http", "ssh", "file", "git", "ftp"}, strings.ToLower(host)):
		return URL{}, badURL("two slashes are missing after the colon")
	case !validHost(host):
		return URL{}, badURL("its host is not a host name")
	case path == "" || strings.HasPrefix(path, "-") || strings.HasPrefix(path, ":") || strings.Trim(path, "/") == "":
		return URL{}, badURL("what follows the colon is not the path of a repository")
	case strings.Contains(path, "@"): // a user could not see which @ ends the user name
		return URL{}, badURL("its path has an @: write it as ssh://user@host/path")
	}
	u := URL{scheme: "ssh", host: bracketIPv6(strings.ToLower(host)), path: strings.TrimRight(path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if !hasUser {
		return u, nil
	}
	return u.withUser(user)
}

// withUser returns u with a user. It refuses names that a shell or an option parser could misread.
func (u URL) withUser(name string) (URL, error) {
	ok := name != "" && len(name) <= maxSSHUser && name[0] != '-' && name[0] != '.'
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.+~", c) >= 0:
		default:
			ok = false
		}
	}
	if !ok {
		return URL{}, badURL("its user name is not valid: use at most %d letters, digits and -_.+~, and begin with neither - nor .", maxSSHUser)
	}
	u.setLogin(name, "")
	return u, nil
}

// sshLogin returns the user of an ssh address, or defaultSSHUser if the address names no user.
func (u URL) sshLogin() string {
	if name, _ := u.credentials(); name != "" {
		return name
	}
	return defaultSSHUser
}

// dialAddress returns the host and the port of an ssh address.
func (u URL) dialAddress() string {
	h := url.URL{Host: u.host}
	return net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), sshPort))
}

// command returns the command line that starts a service. It quotes the path for a shell: within single quotes, only the quote is
// special, and ! for csh.
func (u URL) command(s service) string {
	return s.String() + " '" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(u.path) + "'"
}
